"""Rows of files: what becomes of each, and what is said about those that cannot be used."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from freerun.config.data import DataConfig
from freerun.data.task_prompt import TaskPrompt
from freerun.data.tasks import load_prompts
from freerun.errors import ConfigError, DataError


def all_prompts(config: DataConfig) -> dict[str, TaskPrompt]:
    prompts = load_prompts(config)
    return {prompt.key: prompt for prompt in prompts.training + prompts.held_out}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def jsonl(path: Path, **settings: Any) -> DataConfig:
    return DataConfig(path=str(path), **settings)


ROWS = [{"question": f"{n} + {n}?", "answer": f"we add\n#### {2 * n:,} "} for n in range(500, 510)]


def test_rows_become_prompts_with_the_answer_after_the_last_mark(tmp_path: Path) -> None:
    rows = [{"question": "why?", "answer": "#### 1 no, wait: #### 1,010 "}, *ROWS]
    prompts = all_prompts(jsonl(write(tmp_path / "train.jsonl", *rows), answer_after="####"))
    assert len(prompts) == 11
    assert prompts["train.jsonl:1"] == TaskPrompt(
        key="train.jsonl:1", text="Question: why?\nAnswer:", answer="1,010"
    )
    assert prompts["train.jsonl:3"].answer == "1,002"


def test_numbers_are_accepted_and_blank_lines_and_line_separators_are_no_rows(tmp_path: Path) -> None:
    rows = [
        {"question": 3, "answer": 4.5},
        "",
        json.dumps({"question": "a\u2028b", "answer": 12345678901234567890}, ensure_ascii=False) + "\r",
        "  ",
    ]
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + write(path, *rows).read_bytes())
    prompts = all_prompts(jsonl(path, held_out_fraction=0.5))
    assert set(prompts) == {"train.jsonl:1", "train.jsonl:3"}
    assert prompts["train.jsonl:1"].text == "Question: 3\nAnswer:"
    assert prompts["train.jsonl:1"].answer == "4.5"
    assert prompts["train.jsonl:3"].text == "Question: a\u2028b\nAnswer:"
    assert prompts["train.jsonl:3"].answer == "12345678901234567890"


@pytest.mark.parametrize("number", ["1.10", "9007199254740993.0", "1e3", "1E-07", "-0", "12345678901234567890123"])
def test_a_number_keeps_its_spelling(tmp_path: Path, number: str) -> None:
    row = f'{{"question": {number}, "answer": {number}}}'
    for path in (
        write(tmp_path / "train.jsonl", *ROWS, row),
        write(tmp_path / "train.json", "[" + ", ".join([*map(json.dumps, ROWS), row]) + "]"),
    ):
        prompt = all_prompts(jsonl(path, template="{question}"))[f"{path.name}:11"]
        assert (prompt.text, prompt.answer) == (number, number)


def test_a_repeated_key_in_an_array_is_named_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text('[{"question": "x", "answer": "1"}, {"question": "y", "question": "z", "answer": "1"}]')
    with pytest.raises(DataError, match=r'\Atrain\.json:2: the key "question" occurs 2 times'):
        load_prompts(jsonl(path))


def test_a_held_out_file_leaves_the_training_file_whole(tmp_path: Path) -> None:
    train, test = write(tmp_path / "train.jsonl", *ROWS), write(tmp_path / "test.jsonl", *ROWS[:3])
    prompts = load_prompts(jsonl(train, held_out_path=str(test)))
    assert len(prompts.training) == 10
    assert {p.key for p in prompts.held_out} == {"test.jsonl:1", "test.jsonl:2", "test.jsonl:3"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{'question': 1}", r"not JSON \(.*\); each line must be one JSON object"),
        ('{"question": NaN, "answer": "1"}', "not JSON"),
        ("[1, 2]", "a list, not an object; each line must be one JSON object"),
        ({"q": "x", "answer": "1"}, r'no field "question" \(fields: "q", "answer"\); change data\.template'),
        ({"question": "x"}, r'no field "answer" \(fields: "question"\); change data\.answer'),
        (
            {"question": "x", "answer": [1]},
            'field "answer" is a list, not a string, a number or a list of strings',
        ),
        ({"question": "x", "answer": None}, 'field "answer" is null'),
        ({"question": True, "answer": "1"}, 'field "question" is a boolean'),
        ({"question": "  ", "answer": "1"}, r'the prompt is empty \("question"\)'),
        ({"question": "x", "answer": " "}, 'field "answer" holds no answer'),
        ('{"question": "x", "answer": "1", "answer": "2"}', 'the key "answer" occurs 2 times; keep one of them'),
        ('{"question": "x", "answer": {"a": 1, "a": 2}}', 'field "answer" is an object that repeats a key'),
        ('{"question": "x", "answer": 1e400}', r"not JSON \(Number out of range"),
        ('{"question": "\\ud800", "answer": "1"}', "not JSON"),
    ],
)
def test_a_bad_row_is_named_with_its_line_and_the_remedy(
    tmp_path: Path, row: str | dict[str, object], message: str
) -> None:
    path = write(tmp_path / "train.jsonl", *ROWS, row)
    with pytest.raises(DataError, match=rf"\Atrain\.jsonl:11: {message}"):
        load_prompts(jsonl(path))


def test_brackets_too_deep_to_read_are_a_bad_row(tmp_path: Path) -> None:
    deep = '{"question": ' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(DataError, match=r"\Atrain\.jsonl:11: not JSON \(maximum recursion depth"):
        load_prompts(jsonl(write(tmp_path / "train.jsonl", *ROWS, deep)))
    with pytest.raises(DataError, match=r"train\.json: not JSON \(maximum recursion depth"):
        load_prompts(jsonl(write(tmp_path / "train.json", deep)))


def test_bytes_that_are_not_utf8_are_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'{"question": "\xff", "answer": "1"}\n')
    with pytest.raises(DataError, match=r"train\.jsonl:1: not JSON"):
        load_prompts(jsonl(path))


def test_a_missing_answer_mark_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", *ROWS, {"question": "x", "answer": "no mark"})
    with pytest.raises(DataError, match=r'train\.jsonl:11: .* lacks the mark "####"; change data\.answer_after'):
        load_prompts(jsonl(path, answer_after="####"))


def test_a_mark_that_is_a_line_break_is_named_on_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", *ROWS, {"question": "x", "answer": "no mark"})
    with pytest.raises(DataError, match=r'lacks the mark "\\n"; change data\.answer_after'):
        load_prompts(jsonl(path, answer_after="\n"))


def test_the_first_five_bad_rows_are_reported_together_and_the_rest_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", *ROWS, *[{"question": "x"}] * 7)
    with pytest.raises(DataError) as caught:
        load_prompts(jsonl(path))
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines[:-1]] == [f"train.jsonl:{n}" for n in range(11, 16)]
    assert lines[-1] == "and 2 more of 17 rows"


def test_a_prompt_that_is_shown_solved_is_never_evaluated(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", *ROWS)
    prompts = load_prompts(jsonl(path, held_out_path=str(path), num_shots=2))
    assert len(prompts.held_out) == 8
    assert not {shot.key for shot in prompts.shots} & {prompt.key for prompt in prompts.held_out}
    same = write(tmp_path / "same.jsonl", *[ROWS[0]] * 3)
    with pytest.raises(DataError, match="shows all 3 held-out prompts as solved examples"):
        load_prompts(jsonl(same, held_out_path=str(same), num_shots=2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "euclid", "path": "x.jsonl"}, r"data\.path = 'x\.jsonl' means nothing for .*\"euclid\""),
        ({"task": "reasoning-gym/chain_sum", "held_out_path": "x"}, r"data\.held_out_path = 'x' means nothing"),
        ({"task": "file", "path": "x", "settings": ("size=3",)}, r"data\.settings = .* means nothing"),
    ],
)
def test_settings_that_a_task_would_ignore_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(**settings)


def test_bad_rows_of_the_held_out_file_stop_the_run_too(tmp_path: Path) -> None:
    train, test = write(tmp_path / "train.jsonl", *ROWS), write(tmp_path / "test.jsonl", {"question": "x"})
    with pytest.raises(DataError, match=r"test\.jsonl:1: no field"):
        load_prompts(jsonl(train, held_out_path=str(test)))


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl: no such file or directory; name a file"):
        load_prompts(jsonl(tmp_path / "nowhere.jsonl"))
    with pytest.raises(DataError, match=r"empty\.jsonl: the file has no rows"):
        load_prompts(jsonl(write(tmp_path / "empty.jsonl")))


def test_too_few_rows_to_hold_any_out_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0\.2 of 2 prompts leaves none for evaluation"):
        load_prompts(jsonl(write(tmp_path / "train.jsonl", *ROWS[:2])))


# Templates


def test_a_template_fills_fields_and_keeps_doubled_braces(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", *[{**row, "hint 1": "{answer} {{"} for row in ROWS])
    config = jsonl(path, template="{hint 1}|{question}|\\boxed{{}}|{{{question}}}")
    assert all_prompts(config)["train.jsonl:1"].text == "{answer} {{|500 + 500?|\\boxed{}|{500 + 500?}"


@pytest.mark.parametrize("template", ["{question} \\boxed{}", "{question", "{question}}", "} {question}"])
def test_lone_braces_in_a_template_are_refused_with_the_way_to_write_them(tmp_path: Path, template: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.template has a lone .*write \{\{ and \}\} for braces"):
        load_prompts(jsonl(write(tmp_path / "train.jsonl", *ROWS), template=template))


def test_a_template_without_a_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"names no \{field\}"):
        load_prompts(jsonl(write(tmp_path / "train.jsonl", *ROWS), template="Question: {{question}}"))


@pytest.mark.parametrize("field", ["question.__class__", "question!r", "question:>9", "0"])
def test_a_template_field_is_looked_up_and_never_evaluated(tmp_path: Path, field: str) -> None:
    with pytest.raises(DataError, match=rf'no field "{re.escape(field)}"'):
        load_prompts(jsonl(write(tmp_path / "train.jsonl", *ROWS), template=f"{{{field}}}"))
