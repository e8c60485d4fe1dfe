"""The first look at a data file, and the recipe that is made of it."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_prompts import make_tokenizer

from freerun.config.load import load_recipe
from freerun.data.first_look import look_at
from freerun.data.first_recipe import first_recipe
from freerun.data.tasks import load_prompts
from freerun.errors import DataError

SUMS = [{"question": f"{a} + {b}?", "answer": a + b} for a in range(5) for b in range(5)]


def written(directory: Path, rows: list[dict[str, Any]], name: str = "rows.jsonl") -> Path:
    path = directory / name
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif name.endswith("json"):
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def recipe_for(path: Path) -> dict[str, Any]:
    return tomllib.loads(first_recipe(look_at(path), model="models/none", directory=Path("models/none")).text)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_every_kind_of_file_becomes_a_recipe_that_reads_it(tmp_path: Path, name: str) -> None:
    recipe_path = tmp_path / "first.toml"
    look = look_at(written(tmp_path, SUMS, name))
    recipe_path.write_text(first_recipe(look, model="models/none", directory=tmp_path).text)
    recipe = load_recipe(recipe_path)
    prompts = load_prompts(recipe.data)
    assert len(prompts.training) + len(prompts.held_out) + len(prompts.shots) == 25
    assert (recipe.reward.grader, recipe.sampling.stop) == ("number", ("\n",))


@pytest.mark.parametrize(
    ("answers", "kind", "grader"),
    [
        (["1", "-2.50", "1,234", "$5", "50%", "1/2"], "number", "number"),
        ([r"\frac{1}{2}", "$x^2$", "3", "x = 4", r"\sqrt{2}", "2^3"], "math", "math"),
        (["assert f(1) == 2", "assert f(0)", "assert 1 ", "assert 2 ", "assert 3 ", "assert 4 "], "code", "code"),
        (["Paris", "Rome", "New York City", "Oslo", "42", "Bern"], "short text", "exact"),
        ([f"{'a long answer ' * 9}{n}" for n in range(6)], "long text", "exact"),
    ],
)
def test_the_kind_of_the_answers_decides_the_grader(
    tmp_path: Path, answers: list[str], kind: str, grader: str
) -> None:
    path = written(tmp_path, [{"problem": f"{n}?", "target": answer} for n, answer in enumerate(answers)])
    assert look_at(path).kind == kind
    assert recipe_for(path)["reward"]["grader"] == grader


def test_solutions_before_a_mark_are_cut_off_and_leave_room_to_reason(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": f"{'because ' * 40}\n#### {n}"} for n in range(30)]
    recipe = recipe_for(written(tmp_path, rows))
    assert recipe["data"]["answer_after"] == "####"
    assert "stop" not in recipe["sampling"]
    assert recipe["sampling"]["max_completion_tokens"] >= 160
    assert recipe["reward"]["grader"] == "number"


def test_columns_are_found_in_any_case_and_a_context_is_read_first(tmp_path: Path) -> None:
    rows = [{"id": n, "Body": f"Tom has {n}.", "Question": "How many?", "Answer": n} for n in range(6)]
    look = look_at(written(tmp_path, rows))
    assert (look.context, look.question, look.answer) == ("Body", "Question", "Answer")
    assert recipe_for(look.path)["data"]["template"] == "{Body}\nQuestion: {Question}\nAnswer:"


def test_a_test_file_beside_the_training_file_is_held_out(tmp_path: Path) -> None:
    train, test = written(tmp_path, SUMS[:15], "train.jsonl"), written(tmp_path, SUMS[15:], "test.jsonl")
    assert recipe_for(train)["data"]["held_out_path"] == str(test)
    assert recipe_for(test)["data"]["held_out_fraction"] == 0.2


def test_lengths_are_those_of_the_models_tokenizer(tmp_path: Path) -> None:
    path = written(tmp_path, SUMS)
    tokenizer = make_tokenizer(tmp_path / "model")
    exact = first_recipe(look_at(path), model="m", directory=tmp_path / "model")
    longest = max(len(tokenizer.encode(f"Question: {row['question']}\nAnswer:")) for row in SUMS)
    assert f"# the longest has {longest}" in exact.text
    assert exact.notes == ()
    estimated = first_recipe(look_at(path), model="m", directory=tmp_path)
    assert estimated.notes == ("lengths are estimated: m has no tokenizer yet",)


def test_repeated_questions_and_long_answers_are_noted(tmp_path: Path) -> None:
    rows = [{"question": f"{n % 4}?", "answer": "so it is " * 20} for n in range(8)]
    notes = first_recipe(look_at(written(tmp_path, rows)), model="m", directory=tmp_path).notes
    assert any("4 rows repeat a question" in note for note in notes)
    assert any("write your own function" in note for note in notes)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (SUMS[:3], {}, "has 3 rows; at least 5 are needed"),
        ([{"x": 1, "answer": n} for n in range(9)], {}, r"is named like the question; name it with --question"),
        ([{"question": "a", "y": n} for n in range(9)], {}, r"like the answer; .* \(there are y\)"),
        (SUMS, {"answer": "total"}, 'no column "total" .* for --answer; there are answer'),
        (
            [{"question": "a", "answer": None} for _ in range(9)],
            {},
            "no column with a text or a number in every row",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_columns(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        look_at(written(tmp_path, rows), **options)
