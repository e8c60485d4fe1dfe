"""The order of time over the calls of a session, checked by hand, and the critic's advantages along it."""

import numpy as np
import pytest
from sessions import as_calls, as_few_sequences_as_possible, as_sequences, make_sessions

from freerun.trainer.critic import generalised_advantages
from freerun.trainer.timeline import Timeline, lay_out
from freerun.types import Completion, Prompt, Reward, Span, Trajectory, WholeSample


def part_of(reward: Reward, part: int, *spans: Span) -> Trajectory:
    num_tokens = sum(span.num_tokens for span in spans)
    return Trajectory(
        prompt=Prompt(ordinal=0, key="", text="", answer="", token_ids=np.array([1], np.int32)),
        sample=0,
        part=part,
        completion=Completion(
            token_ids=np.ones(num_tokens, np.int32),
            logprobs=np.zeros(num_tokens, np.float32),
            spans=spans,
            finish_reason="stop",
            text="",
        ),
        reward=reward,
    )


def test_calls_follow_each_other_whatever_sequences_they_are_in() -> None:
    reward = Reward(3.0, True)
    # Calls 0 and 2 in the first sequence, call 1 in the second; then a sample of one call.
    branched = WholeSample(
        (
            part_of(reward, 0, Span(0, 2), Span(None, 5), Span(0, 1, call=2)),
            part_of(reward, 1, Span(0, 3, call=1)),
        )
    )
    plain = WholeSample((part_of(Reward(-1.0, False), 0, Span(0, 2)),))
    timeline, places = lay_out([branched, plain], turn_discount=0.5)
    assert [of_part.tolist() for of_part in places] == [[0, 1, 5], [2, 3, 4], [6, 7]]
    assert timeline.rewards.tolist() == [0, 0, 0, 0, 0, 3.0, 0, -1.0]
    assert timeline.discounts.tolist() == [1, 0.5, 1, 1, 0.5, 0, 1, 0]


def test_each_call_ends_with_what_it_earned() -> None:
    sample = WholeSample(
        (part_of(Reward(6.0, True, turns=(1.0, 2.0, 3.0)), 0, Span(0, 2), Span(0, 1, 1), Span(0, 1, 2)),)
    )
    timeline, _ = lay_out([sample], turn_discount=1.0)
    assert timeline.rewards.tolist() == [0, 1.0, 2.0, 3.0]
    assert timeline.discounts.tolist() == [1, 1, 1, 0]


def test_what_a_call_without_tokens_earned_belongs_to_the_one_before_it() -> None:
    sample = WholeSample((part_of(Reward(7.0, True, turns=(1.0, 2.0, 4.0)), 0, Span(0, 1), Span(0, 1, call=2)),))
    timeline, _ = lay_out([sample], turn_discount=0.5)
    assert timeline.rewards.tolist() == [1.0 + 0.5 * 2.0, 4.0]
    assert timeline.discounts.tolist() == [0.25, 0]


def naive_gae(values: list[float], timeline: Timeline, gamma: float, lam: float) -> list[float]:
    """The double sum of the definition, with discounts that differ."""
    num_tokens = len(values)
    discounts = [gamma * d for d in timeline.discounts]
    after = [*values[1:], 0.0]
    deltas = [timeline.rewards[t] + discounts[t] * after[t] - values[t] for t in range(num_tokens)]
    return [
        sum(float(np.prod([lam * d for d in discounts[t:k]])) * deltas[k] for k in range(t, num_tokens))
        for t in range(num_tokens)
    ]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.7)])
def test_gae_follows_the_calls_of_every_sample(gamma: float, lam: float) -> None:
    groups = as_few_sequences_as_possible(make_sessions(branches=True, has_turns=True))
    samples = [sample for group in groups for sample in group.samples]
    timeline, _ = lay_out(samples, turn_discount=0.8)
    values = np.random.default_rng(0).normal(size=len(timeline.rewards))
    advantages = generalised_advantages(values, timeline, gamma=gamma, lam=lam)
    assert advantages == pytest.approx(naive_gae(values.tolist(), timeline, gamma, lam))


def test_the_timeline_of_a_session_is_the_same_in_every_form() -> None:
    for session in (s for group in make_sessions(seed=5, branches=True, has_turns=True) for s in group):
        whole, _ = lay_out([WholeSample(as_sequences(session))], turn_discount=0.9)
        apart, places = lay_out([WholeSample(as_calls(session))], turn_discount=0.9)
        np.testing.assert_array_equal(whole.rewards, apart.rewards)
        np.testing.assert_array_equal(whole.discounts, apart.discounts)
        np.testing.assert_array_equal(np.concatenate(places), np.arange(len(apart.rewards)))
