"""`freerun.evaluate`: a real evaluation of a tiny model, with a running event loop and without."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import make_run

import freerun

GRADED = {"reward.grader": "exact", "eval.num_prompts": 3, "eval.num_samples": 2}


@pytest.mark.slow
def test_an_evaluation_returns_estimates_and_where_they_are_recorded(tmp_path: Path) -> None:
    recipe = freerun.load_recipe(make_run(tmp_path), GRADED)
    model = tmp_path / "model"
    first = freerun.evaluate(model, recipe, output=tmp_path / "first")
    assert (first.num_prompts, first.num_samples, first.num_failed) == (3, 2, 0)
    assert first.accuracy == first.pass_at[1]
    assert first.pass_at.keys() == {1, 2}
    assert 0 <= first.accuracy.low <= first.accuracy.value <= first.accuracy.high <= 1
    with first.reader() as reader:
        assert len(reader.eval_completions(0)) == 6

    async def cell() -> freerun.EvaluationResult:
        return freerun.evaluate(model, recipe, greedy=True, output=str(tmp_path / "second"))

    assert asyncio.run(cell()).num_samples == 1


def test_what_cannot_be_evaluated_is_named(tmp_path: Path) -> None:
    recipe = freerun.load_recipe(make_run(tmp_path), GRADED)
    with pytest.raises(freerun.FreerunError, match="neither a model directory"):
        freerun.evaluate(tmp_path / "none" / "such", recipe)
    with pytest.raises(freerun.FreerunError, match="name a task to evaluate it on"):
        freerun.evaluate(tmp_path / "model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ks": 2}, r"ks is of type int; pass a list such as \[1, 8\]"),
        ({"ks": [3]}, "k = 3 must lie between 1 and the 2 samples of a prompt; raise eval.num_samples"),
        ({"ks": ["1"]}, r"ks\[0\] is of type str; pass integers"),
        ({"split": "test"}, 'split "test" must be one of held-out, training'),
        ({"version": "new"}, "version is of type str"),
        ({"version": 3}, "it has no version 3"),
        ({"task": 7}, "task is of type int"),
        ({"model_or_run": None}, "model_or_run is of type NoneType"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    recipe = freerun.load_recipe(make_run(tmp_path), GRADED)
    given: dict[str, Any] = {"model_or_run": tmp_path / "model", "task": recipe}
    with pytest.raises(freerun.FreerunError, match=message):
        freerun.evaluate(**given | arguments)
