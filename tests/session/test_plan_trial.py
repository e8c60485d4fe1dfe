"""The plan shows prompts, tries the grader on their answers, finds near copies, and estimates disk and time."""

import json
import re
import shutil
import string
from pathlib import Path

import pytest

from freerun.cli.main import main
from freerun.data.task_prompt import TaskPrompt, TaskPrompts, near_copies
from freerun.model.tiny import make_tiny
from freerun.simulation.forecast import range_of_times

RECIPE = """
[model]
path = "model"
[data]
path = "rows.jsonl"
{data}
[sampling]
max_completion_tokens = 8
[engine]
cache_tokens = 4096
[reward]
{reward}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 16}
    make_tiny(tmp_path / "model", alphabet=f"{string.printable}\x1b", **sizes)
    return tmp_path


def plan_of(
    capsys: pytest.CaptureFixture[str], answers: list[str], *, data: str = "", reward: str = 'grader = "number"'
) -> str:
    rows = [{"question": f"question {n}", "answer": answer} for n, answer in enumerate(answers)]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Path("own.toml").write_text(RECIPE.format(data=data, reward=reward))
    assert main(["train", "own.toml", "--dry-run"]) == 0
    return capsys.readouterr().out.partition("\nplan\n")[2]


@pytest.mark.usefixtures("directory")
def test_two_prompts_are_shown_with_what_the_grader_gives_their_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = plan_of(capsys, [str(n) for n in range(20)])
    shown = re.findall(r"    \| Question: question (\d+)\n    \| Answer:\n    answer: (\d+); (.*)\n", plan)
    assert [(question == answer, outcome) for question, answer, outcome in shown] == [
        (True, "the grader gives it 5, right")
    ] * 2
    assert "warning" not in plan
    assert "no held-out prompt is trained on" in plan


@pytest.mark.usefixtures("directory")
def test_a_grader_that_finds_no_reference_answer_right_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(capsys, ["so it is 7"] * 9, reward="grader = 'regex'\npattern = '#### (.+)'")
    assert "the grader does not find the reference answer right for 7 of 7 prompts" in plan
    assert "the grader gives it -5, not right" in plan


@pytest.mark.usefixtures("directory")
def test_a_function_that_fails_on_an_answer_is_a_warning_with_its_reason(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    (directory / "fails_at_once.py").write_text("def grade(completion):\n    raise ValueError('no idea')\n")
    plan = plan_of(capsys, ["7"] * 9, reward='grader = "fails_at_once:grade"')
    assert "grading it failed: ValueError: no idea" in plan
    assert "the reference answer right for 1 of 1 prompts" in plan


@pytest.mark.usefixtures("directory")
def test_control_characters_of_the_data_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(capsys, ["\x1b[2J7"] * 9, data='template = "{question}{answer}"')
    assert "\x1b" not in plan
    assert r"\x1b[2J7" in plan


@pytest.mark.usefixtures("directory")
def test_unit_tests_are_not_graded_as_if_they_were_programs(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(capsys, ["assert f(1) == 1"] * 9, reward='grader = "code"')
    assert "answer: assert f(1) == 1; not graded" in plan
    solved = 'shot_template = "def f(x):\\n    return x\\n# {answer}"'
    plan = plan_of(capsys, ["assert f(1) == 1"] * 9, data=solved, reward='grader = "code"')
    assert "the grader gives its solution 5, right" in plan


@pytest.mark.usefixtures("directory")
def test_copies_that_differ_in_case_or_spaces_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("test.jsonl").write_text('{"question": "Question  3", "answer": 3}\n{"question": "other", "answer": 1}\n')
    plan = plan_of(capsys, [str(n) for n in range(9)], data='held_out_path = "test.jsonl"')
    assert "warning: 1 of 2 held-out prompts differ from a training prompt only in case or spaces" in plan
    assert "(such as test.jsonl:1 and rows.jsonl:4)" in plan


def test_signs_are_no_spaces() -> None:
    prompts = TaskPrompts(training=(TaskPrompt("a", "7 * 8", "56"),), held_out=(TaskPrompt("b", "7 + 8", "15"),))
    assert near_copies(prompts) == []


@pytest.mark.usefixtures("directory")
def test_disk_and_time_are_estimated_and_a_full_disk_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(capsys, [str(n) for n in range(9)])
    assert re.search(r"disk: about \d+\.\d MB in runs/own \(3 checkpoints of \d+\.\d MB, store up to", plan)
    assert re.search(r"time: (roughly \d+ (s|min|h) to|about) \d+ (s|min|h) on this machine", plan)

    class Usage:
        free = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage)
    assert "warning: the run may need" in plan_of(capsys, [str(n) for n in range(9)])


def test_a_range_of_times_without_width_is_one_time() -> None:
    assert range_of_times(0.1, 0.9) == "about 1 s"
    assert range_of_times(60, 240) == "roughly 60 s to 4 min"
