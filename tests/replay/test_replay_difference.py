"""What a replay says about a step that is not the recorded one."""

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from freerun.cli.replay import show_difference
from freerun.controller import step_facts
from freerun.events.schema import StepRow, TrajectoryRow
from freerun.replay.difference import Difference, compare_step
from freerun.replay.replay import Comparison, Retrained
from freerun.types import Span, StepResult, TrainedTrajectory

METRICS = {"reward": 0.5, "loss": 0.25, "clip_fraction": math.nan, "train_tokens_per_second": 10.0}


def compared(
    *, checksum: str = "same", recorded: str = "same", advantage: float = 1.0, **metrics: float
) -> Difference | None:
    """A step with these metrics against one with `METRICS` and an advantage of 1."""
    result, step, row = trained_and_recorded(advantage, metrics)
    return compare_step(result, checksum, step=step, rows=[row], recorded_checksum=recorded)


def trained_and_recorded(
    advantage: float = 1.0, metrics: Mapping[str, float] = {}
) -> tuple[StepResult, StepRow, TrajectoryRow]:
    weights = np.zeros(2, np.float16)
    trained = TrainedTrajectory(log_weights=weights, advantage=advantage, clipped=np.empty(0, np.int32))
    result = StepResult(version=3, metrics={**METRICS, **metrics}, staleness_counts={}, trajectories=(trained,))
    own_of_controller = dict.fromkeys(step_facts.METRICS, 0.5)
    step = StepRow(
        version=3, seconds=0, step_seconds=0, wait_seconds=0, staleness_counts={},
        metrics=METRICS | own_of_controller,
    )  # fmt: skip
    row = TrajectoryRow(
        version=3, ordinal=7, sample=2, part=0, key="k", prompt="p", answer="a", completion="c", reward=1.0,
        is_correct=True, finish_reason="stop", token_ids=np.zeros(2, np.int32), staleness=0,
        prompt_token_ids=np.zeros(1, np.int32), logprobs=np.zeros(2, np.float32), spans=(Span(2, 2),),
        reward_parts={}, reward_turns=(), log_weights=weights, advantage=1.0, num_clipped=0,
        clipped=np.empty(0, np.int32),
    )  # fmt: skip
    return result, step, row


def test_a_step_that_took_another_time_is_the_same() -> None:
    assert compared(train_tokens_per_second=99.0) is None


def test_another_checksum_is_named_with_the_first_metric_that_differs() -> None:
    difference = compared(checksum="other", loss=0.5, clip_fraction=0.0)
    assert difference is not None
    assert difference.version == 3
    checksum, metric = difference.lines
    assert checksum == "its checksum is other, recorded was same"
    assert metric == "the first metric that differs is loss: 0.5, recorded was 0.25"


def test_another_checksum_with_the_same_metrics_is_named() -> None:
    difference = compared(checksum="other")
    assert difference is not None
    assert difference.lines[1] == "all metrics of its step are the recorded ones"


def test_a_trajectory_with_another_advantage_is_named_although_the_weights_are_the_same() -> None:
    difference = compared(advantage=2.0)
    assert difference is not None
    assert "it has the recorded checksum, but its step was another" in difference.lines
    assert "sample 2 of prompt 7 (k): advantage 2.0, recorded was 1.0" in difference.lines[-1]


def test_a_recorded_metric_that_the_trainer_does_not_measure_again_is_named() -> None:
    result, step, row = trained_and_recorded()
    step = msgspec.structs.replace(step, metrics=step.metrics | {"entropy": 1.5})
    difference = compare_step(result, "same", step=step, rows=[row], recorded_checksum="same")
    assert difference is not None
    assert difference.lines[1] == "the first metric that differs is entropy: missing, recorded was 1.5"


def test_a_version_that_differs_and_has_no_recorded_checksum_is_counted_once() -> None:
    comparison = Comparison()
    for recorded, metrics in (("same", {}), ("same", {}), ("", {"reward": 0.75})):
        result, step, row = trained_and_recorded(metrics=metrics)
        goes_on = comparison.take(Retrained(result, "same", (), step, [row], recorded))
    assert not goes_on
    assert (comparison.num_same, comparison.num_unknown) == (2, 1)


def test_a_version_without_a_recorded_checksum_is_compared_by_its_metrics() -> None:
    assert compared(recorded="") is None
    assert compared(recorded="", reward=0.75) is not None


def test_names_of_metrics_do_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    difference = compared(**METRICS, **{"reward/\x1b[2J": 1.0})  # type: ignore[arg-type]
    assert difference is not None
    show_difference(difference)
    output = capsys.readouterr().out
    assert r"the first metric that differs is reward/\x1b[2J: 1.0" in output
    assert "\x1b" not in output
