"""`freerun.train` as a program calls it: real runs of a tiny model, and what it says of wrong arguments."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import lively_grader
import pytest
from tiny_runs import ROOT, make_run

import freerun
from freerun.cli.main import main
from freerun.events.events import AnyEvent, RunFinished

SHORT = {"train.num_steps": 2, "eval.every_steps": 2}
ROWS = [{"question": f"{n},{n + 3}", "answer": n} for n in range(10, 30)]


def short_recipe(directory: Path, **sections: Any) -> freerun.Recipe:
    return freerun.load_recipe(make_run(directory), SHORT | sections)


def test_a_run_in_an_event_loop_with_a_local_reward_rows_and_listeners(tmp_path: Path) -> None:
    events: list[AnyEvent] = []
    asked: list[tuple[str, str]] = []

    def reward(prompt: str, completion: str, answer: str, row: dict[str, Any]) -> float:
        asked.append((prompt, str(row["answer"])))
        return lively_grader.score(prompt, completion, answer)

    def bad_listener(event: AnyEvent) -> None:
        seen.append(event)
        raise ValueError("no more")

    seen: list[AnyEvent] = []
    recipe = short_recipe(tmp_path, **{"data.template": "{question}="})
    handler = signal.getsignal(signal.SIGINT)

    async def cell() -> freerun.Result:
        return freerun.train(recipe, reward=reward, data=ROWS, listeners=[bad_listener, events.append])

    result = asyncio.run(cell())
    assert (result.outcome, result.reason, result.version) == ("finished", "", 2)
    assert result.model_directory == tmp_path / "runs/tiny/checkpoints/step-2/model"
    assert result.accuracy is not None
    assert isinstance(events[-1], RunFinished)
    assert len(seen) == 1
    assert (result.run_directory / "log.txt").read_text().count("raised ValueError: no more; it gets") == 1
    assert {answer for _, answer in asked} <= {str(row["answer"]) for row in ROWS}
    assert {prompt for prompt, _ in asked} <= {f"{row['question']}=" for row in ROWS}
    assert signal.getsignal(signal.SIGINT) is handler
    with result.reader() as reader:
        assert len(reader.steps()) == 2

    more = freerun.load_recipe(result.run_directory / "config.toml", {"train.num_steps": 3})
    resumed = freerun.train(more, reward=reward, data=ROWS, resume=True)
    assert (resumed.outcome, resumed.version) == ("finished", 3)
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(freerun.FreerunError, match="rows of data differ"):
        freerun.train(more, reward=reward, data=ROWS[1:], resume=True)


def test_the_command_line_says_who_can_resume_a_run_with_a_local_reward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run(tmp_path)
    assert main(["train", str(path), "--reward.grader", "__main__:f", "--dry-run"]) == 2
    assert "is a function of the program that started the run" in capsys.readouterr().err


SCRIPT = """
import sys
import freerun


def reward(prompt, completion, answer):
    return sum(character.isdigit() for character in completion) / 4


recipe = freerun.load_recipe(sys.argv[1], {"train.num_steps": 1, "eval.every_steps": 5})
print(freerun.train(recipe, reward=reward))
"""


@pytest.mark.slow
def test_a_function_of_a_script_can_be_the_reward(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(make_run(tmp_path))],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "Result(outcome='finished', reason='', version=1" in done.stdout
    assert '"__main__:reward"' in (tmp_path / "runs/tiny/config.toml").read_text()
    assert not (tmp_path / "runs/tiny/logs/grader-0.log").exists()


def test_a_function_of_a_module_runs_in_grader_processes_and_a_failed_run_is_a_result(tmp_path: Path) -> None:
    recipe = short_recipe(tmp_path, **{"reward.max_failures_in_row": 2})
    result = freerun.train(recipe, reward=lively_grader.broken)
    assert result.outcome == "failed"
    assert "this grader never works" in result.reason
    assert (tmp_path / "runs/tiny/logs/grader-0.log").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": 3}, "recipe is of type int"),
        ({"recipe": "no-such"}, "there is no recipe"),
        ({"reward": "number"}, "reward is of type str"),
        ({"reward": lambda text: 1.0}, '"text" is none of prompt, answer, row'),
        ({"data": []}, "data has no rows"),
        ({"data": ["text"]}, r"data\[0\] is of type str"),
        ({"data": [{"a": object()}]}, r"data\[0\] cannot be written as JSON"),
        ({"listeners": print}, "listeners is of type"),
        ({"listeners": [3]}, r"listeners\[0\] is of type int"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    given = {"recipe": short_recipe(tmp_path)} | arguments
    with pytest.raises(freerun.FreerunError, match=message):
        freerun.train(given.pop("recipe"), **given)
    assert not (tmp_path / "runs").exists()


def test_an_unknown_name_is_no_part_of_the_library() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'tarin'"):
        freerun.tarin  # noqa: B018
    assert set(freerun.__all__) <= set(dir(freerun))
    assert all(getattr(freerun, name) is not None for name in freerun.__all__)
