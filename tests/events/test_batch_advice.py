"""Advice from a run's own curves: what larger steps would have trained more, at most what stages can do."""

import pytest
from health_runs import a_start, a_step, findings
from hypothesis import given
from hypothesis import strategies as st

from freerun.events.batch_advice import LARGER, batch_gain, describe_batch, fixed_seconds
from freerun.events.events import AnyEvent, EngineReport
from freerun.types import EngineStats

seconds = st.floats(0.01, 100.0)


def test_the_fixed_time_of_a_step_is_what_steps_of_different_size_prove() -> None:
    sizes = [100.0 * n for n in range(1, 13)]
    assert fixed_seconds([(tokens, 3 + 0.01 * tokens) for tokens in sizes]) == pytest.approx(3.0)
    noisy = [(tokens, 3 + 0.01 * tokens + (-1) ** n) for n, tokens in enumerate(sizes)]
    assert 0 < fixed_seconds(noisy) < 3.0
    assert fixed_seconds([(500.0, 3.0)] * 12) == 0, "steps of equal size tell nothing"
    assert fixed_seconds([(tokens, 3 + 0.01 * tokens) for tokens in sizes[:7]]) == 0, "too few"


@given(training=seconds, share=st.floats(0, 1), generating=seconds, loading=seconds, wait=st.floats(0, 50))
def test_no_more_is_promised_than_both_stages_can_do(
    training: float, share: float, generating: float, loading: float, wait: float
) -> None:
    period = max(training, generating + loading) + wait
    gain = batch_gain(
        period=period, training=training, fixed=share * training, generating=generating, loading=loading
    )
    if gain is not None:
        assert 1.1 <= gain <= LARGER * period / (LARGER * generating + loading) * (1 + 1e-9)
        assert gain <= LARGER * period / (training + (LARGER - 1) * (1 - share) * training) * (1 + 1e-9)


def test_a_stage_without_fixed_time_that_never_rests_gains_nothing() -> None:
    assert batch_gain(period=2.0, training=2.0, fixed=0.0, generating=0.5, loading=0.1) is None


def test_the_summary_says_it_where_it_names_the_limit() -> None:
    trained = [
        a_step(
            n, {"gate_closed_seconds": 1.9, "num_tokens": tokens}, wait_seconds=0.0,
            step_seconds=1.0 + 0.001 * tokens,
        )
        for n, tokens in ((n, 900.0 + 200.0 * (n % 2)) for n in range(1, 13))
    ]  # fmt: skip
    busy: list[AnyEvent] = [
        EngineReport(
            seconds=at,
            worker="rollout-0",
            stats=EngineStats(version=1, num_steps=1 + int(at), busy_seconds=0.3 * at, load_seconds=0.01 * at),
        )
        for at in (0.0, trained[-1].seconds)
    ]
    found = findings([a_start(), *busy, *trained])["limit"]
    assert found.text.startswith("the trainer is the limit")
    gain = 4 * 2 / (1 + 4 * 1)
    assert found.advice.endswith(describe_batch(8, gain))
    assert found.advice.endswith(
        "train.prompts_per_step 32 (fewer, larger steps) would train at most 1.6 times as much"
    )
