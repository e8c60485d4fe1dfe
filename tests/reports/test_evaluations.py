"""Evaluations paired by prompt: the numbers, the refusals, and the interval by simulation."""

import csv
import math
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fake_groups import a_group
from recorded_events import an_eval, write

from freerun.cli.main import main
from freerun.config.load import load_recipe
from freerun.evaluation.job import EvalJob, Split, save_job
from freerun.events.events import PromptResult
from freerun.events.paired import paired_interval
from freerun.reports.evaluations import changes, evaluation_rows, read_evaluations
from freerun.reports.intervals import t_interval

NUM_SAMPLES = 4


def make_evaluation(
    directory: Path,
    correct: dict[str, int],
    *,
    split: Split = "held-out",
    answer: str = "!",
    is_greedy: bool = False,
) -> Path:
    """A recorded evaluation: right samples by prompt, -1 for a prompt that could not be graded."""
    prompts, groups = [], []
    for ordinal, (key, num_correct) in enumerate(correct.items(), start=1):
        is_graded = num_correct >= 0
        group = a_group(-ordinal, 0, rewards=[1.0] * num_correct + [0.0] * (NUM_SAMPLES - num_correct))
        prompt = msgspec.structs.replace(group.trajectories[0].prompt, key=key, answer=answer)
        groups += (
            [tuple(msgspec.structs.replace(t, prompt=prompt) for t in group.trajectories)] if is_graded else []
        )
        prompts.append(
            PromptResult(ordinal=-ordinal, key=key, num_samples=NUM_SAMPLES if is_graded else 0,
                         num_correct=max(num_correct, 0), mean_reward=0.0, mean_length=1.0)
        )  # fmt: skip
    write(directory, msgspec.structs.replace(an_eval(0), prompts=tuple(prompts), groups=tuple(groups)))
    recipe = load_recipe("recipes/times-tables.toml", ["--eval.num_samples", str(NUM_SAMPLES)])
    save_job(EvalJob(recipe, "models/base", 0, "times-tables", split, is_greedy), directory)
    return directory


def test_prompts_are_paired_and_counted_as_better_or_worse(tmp_path: Path) -> None:
    first = make_evaluation(tmp_path / "first", {"a": 0, "b": 2, "c": 4, "d": 1, "e": 3})
    second = make_evaluation(tmp_path / "second", {"e": -1, "d": 2, "c": 3, "b": 2, "a": 4})
    one, two = read_evaluations([first, second])
    assert changes(one, two) == [1.0, 0.0, -0.25, 0.25], "e was not graded in both"
    interval = paired_interval(changes(one, two), NUM_SAMPLES)
    assert interval.value == 0.25
    assert interval.low < 0 < interval.high
    assert evaluation_rows([one, two])[1][-2:] == ["2", "1"]


def test_compare_takes_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = make_evaluation(tmp_path / "first", {"a": 0, "b": 2})
    second = make_evaluation(tmp_path / "second", {"a": 4, "b": -1}, is_greedy=True)
    assert main(["compare", str(first), str(second), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"second +models/base +1 +4 +100\.0 % \[.*\] +\+100\.0 \[.*\] +1 +0\n", printed)
    assert "second: sampled with greedy, not temperature 1" in printed
    assert "second: 1 prompts could not be graded and are not paired" in printed
    with (tmp_path / "out" / "compare.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["prompt", str(first), str(second)],
            ["a", "0.0", "1.0"],
            ["b", "0.5", ""],
        ]
    assert "second: 1 prompts could not be graded" in (tmp_path / "out" / "table.md").read_text()


def test_evaluations_that_cannot_be_compared_are_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = make_evaluation(tmp_path / "first", {"a": 0, "b": 2})
    others = {
        "one asked training prompts, the other held-out ones": make_evaluation(
            tmp_path / "training", {"a": 0, "b": 2}, split="training"
        ),
        "they asked 3 and 2 prompts": make_evaluation(tmp_path / "more", {"a": 0, "b": 2, "c": 1}),
        "and share 1": make_evaluation(tmp_path / "other", {"a": 0, "c": 2}),
        "the prompt a has another answer there": make_evaluation(
            tmp_path / "answers", {"a": 0, "b": 2}, answer="?"
        ),
        "named more than once": tmp_path / "x" / ".." / "first",
    }
    (tmp_path / "x").mkdir()
    for complaint, other in others.items():
        assert main(["compare", str(first), str(other)]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert complaint in line
    assert main(["compare", str(first), str(tmp_path)]) == 2
    assert "compare evaluations with evaluations" in capsys.readouterr().err


def test_no_change_is_not_taken_for_certainty() -> None:
    assert paired_interval([0.0] * 20, 1) == pytest.approx((0.0, -0.161, 0.161), abs=1e-3)
    assert math.isnan(paired_interval([], 1).value)
    assert paired_interval([1.0], 1) == pytest.approx((1.0, -0.122, 1.0), abs=1e-3)


@pytest.mark.parametrize(
    ("num_prompts", "num_samples", "rate", "shift"),
    [(10, 1, 0.95, 0.0), (20, 1, 0.5, 0.1), (20, 4, 0.9, 0.05), (50, 4, 0.2, 0.2)],
)
def test_the_interval_holds_the_truth_also_where_students_t_does_not(
    num_prompts: int, num_samples: int, rate: float, shift: float
) -> None:
    rng = np.random.default_rng(0)
    held: list[bool] = []
    held_by_t: list[bool] = []
    before = np.clip(rng.normal(rate, 0.1, (500_000,)), 0, 1)
    after = np.clip(before + rng.normal(shift, 0.1, before.shape), 0, 1)
    truth = float((after - before).mean())
    for _ in range(500):
        asked = rng.integers(0, len(before), num_prompts)
        drawn = [rng.binomial(num_samples, share[asked]) / num_samples for share in (before, after)]
        paired = (drawn[1] - drawn[0]).tolist()
        for found, interval in ((held, paired_interval(paired, num_samples)), (held_by_t, t_interval(paired))):
            found.append(interval.low <= truth <= interval.high)
    assert np.mean(held) >= 0.93
    if num_prompts == 10:
        assert np.mean(held_by_t) < 0.85
