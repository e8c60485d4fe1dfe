"""Credit per call: unbiased where the policy decides when to stop, which per-turn baselines in common use are not.

The bandit: at turn t the policy continues with probability p_t = sigmoid(theta_t) and otherwise stops; each earns
something. Its gradient is known in closed form, and all outcomes of a small group can be listed: the expectation
of an estimator is an exact sum.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from freerun.config.objective import AXES, ObjectiveConfig
from freerun.trainer.axes import compute_advantages
from freerun.trainer.credit import advantages_by_call
from freerun.types import Completion, Group, Prompt, Reward, Span, Trajectory

Gradient = NDArray[np.float64]
Estimator = Callable[[Sequence[Sequence[float]]], list[list[float]]]
"""From what each turn of each session earned to the advantage of each turn."""


def session(sample: int, reward: Reward, num_calls: int, *, call_tokens: int = 1) -> Trajectory:
    num_tokens = num_calls * call_tokens
    return Trajectory(
        prompt=Prompt(ordinal=0, key="", text="", answer="", token_ids=np.array([1], np.int32)),
        sample=sample,
        completion=Completion(
            token_ids=np.full(num_tokens, 2, np.int32),
            logprobs=np.zeros(num_tokens, np.float32),
            spans=tuple(Span(0, call_tokens, call) for call in range(num_calls)),
            finish_reason="stop",
            text="",
        ),
        reward=reward,
    )


def group_of(*rewards: Sequence[float], has_turns: bool = True) -> Group:
    """Sessions by what each of their turns earned; without turns only the sum is known."""
    trajectories = [
        session(i, Reward(sum(turns), True, turns=tuple(turns) if has_turns else ()), len(turns))
        for i, turns in enumerate(rewards)
    ]
    return Group(ordinal=0, start_version=0, trajectories=tuple(trajectories))


def advantages(objective: ObjectiveConfig, *groups: Group) -> list[list[float]]:
    return [of_sample.tolist() for of_sample in advantages_by_call(groups, objective)]


# ---- the bandit ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bandit:
    thetas: Sequence[float]
    continuing: Sequence[float]
    """What continuing at each turn earns; after the last turn the session ends anyway."""
    stopping: Sequence[float]

    def probability(self, turn: int) -> float:
        return 1 / (1 + math.exp(-self.thetas[turn]))

    def outcomes(self) -> list[tuple[float, list[bool]]]:
        """Each course of a session and its probability: whether it continued, turn by turn."""
        courses, reached = [], 1.0
        for turn in range(len(self.thetas)):
            courses.append((reached * (1 - self.probability(turn)), [True] * turn + [False]))
            reached *= self.probability(turn)
        return [*courses, (reached, [True] * len(self.thetas))]

    def earned(self, course: Sequence[bool]) -> list[float]:
        return [(self.continuing if goes else self.stopping)[turn] for turn, goes in enumerate(course)]

    def score(self, turn: int, continued: bool) -> float:
        """The derivative of the logprob of the choice."""
        return (1.0 if continued else 0.0) - self.probability(turn)

    def gradient(self, discount: float) -> Gradient:
        """Closed form: P(reach t) p_t (1 - p_t) (return of continuing - return of stopping)."""
        num_turns = len(self.thetas)
        values = [0.0] * (num_turns + 1)
        gaps = [0.0] * num_turns
        for turn in reversed(range(num_turns)):
            if_continued = self.continuing[turn] + discount * values[turn + 1]
            p = self.probability(turn)
            values[turn] = p * if_continued + (1 - p) * self.stopping[turn]
            gaps[turn] = p * (1 - p) * (if_continued - self.stopping[turn])
        reached = np.cumprod([1.0, *(self.probability(turn) for turn in range(num_turns - 1))])
        return np.array(reached * gaps)

    def expected_estimate(self, estimate: Estimator, group_size: int) -> Gradient:
        """The mean over all groups of the policy gradient that an estimator gives."""
        total = np.zeros(len(self.thetas))
        for courses in itertools.product(self.outcomes(), repeat=group_size):
            probability = math.prod(p for p, _ in courses)
            rated = estimate([self.earned(course) for _, course in courses])
            for (_, course), of_session in zip(courses, rated, strict=True):
                for turn, advantage in enumerate(of_session):
                    total[turn] += probability * advantage * self.score(turn, course[turn]) / group_size
        return total


def ours(advantage: str, discount: float = 1.0) -> Estimator:
    objective = ObjectiveConfig(advantage=advantage, turn_discount=discount)
    return lambda rewards: advantages(objective, group_of(*rewards))


def per_turn_rewards(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """In common use: each reward minus the mean of that turn's rewards, summed from the turn on."""
    num_turns = max(len(turns) for turns in rewards)
    means = [np.mean([turns[t] for turns in rewards if len(turns) > t]) for t in range(num_turns)]
    centred = [[r - means[t] for t, r in enumerate(turns)] for turns in rewards]
    return [[float(sum(turns[t:])) for t in range(len(turns))] for turns in centred]


def per_turn_returns(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """Also in use: each return minus the mean of that turn's returns over the sessions that got that far."""
    returns = [[float(sum(turns[t:])) for t in range(len(turns))] for turns in rewards]
    num_turns = max(len(turns) for turns in returns)
    means = [np.mean([turns[t] for turns in returns if len(turns) > t]) for t in range(num_turns)]
    return [[float(g - means[t]) for t, g in enumerate(turns)] for turns in returns]


BANDIT = Bandit(thetas=[0.3, -0.5, 0.8], continuing=[1.0, -0.4, 2.0], stopping=[0.2, 1.5, -1.0])
SAME_EVERY_TURN = Bandit(thetas=[0.0, 0.0, 0.0], continuing=[1.0, 1.0, 1.0], stopping=[1.0, 1.0, 1.0])


@pytest.mark.parametrize("discount", [1.0, 0.7])
@pytest.mark.parametrize("group_size", [2, 3, 4])
def test_credit_per_call_is_unbiased_though_the_policy_decides_when_to_stop(
    group_size: int, discount: float
) -> None:
    estimate = BANDIT.expected_estimate(ours("rloo", discount), group_size)
    assert estimate == pytest.approx(BANDIT.gradient(discount), abs=1e-12)


@pytest.mark.parametrize("advantage", ["dr_grpo", "rloo"])
def test_a_mean_that_includes_the_sample_itself_only_scales_the_gradient(advantage: str) -> None:
    factor = 2 / 3 if advantage == "dr_grpo" else 1.0
    estimate = BANDIT.expected_estimate(ours(advantage), group_size=3)
    assert estimate == pytest.approx(factor * BANDIT.gradient(1.0), abs=1e-12)


def test_centring_each_turns_rewards_is_biased() -> None:
    """Every turn earns 1, so longer is better; but a reward that all have minus its mean is nothing."""
    assert (SAME_EVERY_TURN.gradient(1.0)[:2] > 0.1).all()
    assert SAME_EVERY_TURN.expected_estimate(per_turn_rewards, group_size=3) == pytest.approx([0, 0, 0])
    estimate = BANDIT.expected_estimate(per_turn_rewards, group_size=3)
    assert not np.allclose(estimate * 3 / 2, BANDIT.gradient(1.0), atol=0.01)


def test_centring_over_those_that_got_as_far_weighs_late_turns_less() -> None:
    estimate, exact = BANDIT.expected_estimate(per_turn_returns, group_size=3), BANDIT.gradient(1.0)
    shares = estimate / exact
    assert (np.diff(shares) < -0.05).all()


@given(
    st.lists(st.floats(-2, 2), min_size=2, max_size=2),
    st.lists(st.floats(-3, 3), min_size=4, max_size=4),
    st.floats(0.1, 1.0),
)
def test_any_bandit_is_estimated_without_bias(thetas: list[float], rewards: list[float], discount: float) -> None:
    bandit = Bandit(thetas=thetas, continuing=rewards[:2], stopping=rewards[2:])
    estimate = bandit.expected_estimate(ours("rloo", discount), group_size=2)
    assert estimate == pytest.approx(bandit.gradient(discount), abs=1e-9)


# ---- how it is configured -----------------------------------------------------------------------

ESTIMATORS = [name for name in AXES["advantage"] if name != "gae"]
MIXED = (group_of([1.0], [0.0, 2.0], [0.5, -1.0, 1.0]), group_of([0.0], [3.0, 1.0], [1.0, 1.0]))


def test_a_discount_gives_earlier_calls_less_of_the_reward() -> None:
    """Returns 0.25, 0.5, 1 against 1; ended sessions count 0."""
    group = group_of([0.0, 0.0, 1.0], [1.0], has_turns=False)
    objective = ObjectiveConfig(advantage="rloo", turn_discount=0.5)
    assert advantages(objective, group) == [pytest.approx([-0.75, 0.5, 1.0]), pytest.approx([0.75])]


def test_without_discount_and_rewards_per_turn_every_call_has_the_advantage_of_its_sample() -> None:
    group = group_of([0.0, 0.0, 1.0], [3.0], [0.0, 0.0], has_turns=False)
    for estimator in ESTIMATORS:
        objective = ObjectiveConfig(advantage=estimator)
        per_sample = compute_advantages([group], objective)
        assert advantages(objective, group) == [
            [advantage] * num_calls for advantage, num_calls in zip(per_sample, (3, 1, 2), strict=True)
        ]


@pytest.mark.parametrize("estimator", ["global", "dr_grpo", "rloo", "reinforce++"])
def test_sessions_of_one_call_are_rated_as_completions(estimator: str) -> None:
    rewards = [[1.0], [0.0], [2.5]], [[0.0], [0.0], [4.0]]
    per_turn = advantages(ObjectiveConfig(advantage=estimator), *(group_of(*r) for r in rewards))
    groups = [group_of(*r, has_turns=False) for r in rewards]
    per_sample = compute_advantages(groups, ObjectiveConfig(advantage=estimator))
    assert [a for [a] in per_turn] == pytest.approx(per_sample)


@pytest.mark.parametrize("estimator", ["global", "grpo", "reinforce++"])
@pytest.mark.parametrize("normalisation", ["trajectory", "token"])
def test_a_deviation_is_one_number_for_the_batch(estimator: str, normalisation: str) -> None:
    objective = ObjectiveConfig(advantage=estimator, advantage_normalisation=normalisation)  # type: ignore[arg-type]
    flat = np.concatenate(advantages(objective, *MIXED))
    assert flat.std() == pytest.approx(1, abs=1e-5)
    if estimator != "global":
        plain = np.concatenate(advantages(ObjectiveConfig(advantage="dr_grpo"), *MIXED))
        assert flat == pytest.approx(plain / plain.std(), abs=1e-5)


def test_the_whole_batch_is_the_baseline_of_global_advantages() -> None:
    flat = advantages(ObjectiveConfig(advantage="global"), *MIXED)
    returns = [[1.0], [2.0, 2.0], [0.5, 0.0, 1.0], [0.0], [4.0, 1.0], [2.0, 1.0]]
    means = [sum(turns[t] for turns in returns if len(turns) > t) / 6 for t in range(3)]
    centred = [[g - means[t] for t, g in enumerate(turns)] for turns in returns]
    spread = np.std(np.concatenate(centred))
    assert [x for of_sample in flat for x in of_sample] == pytest.approx(
        [x / spread for of_sample in centred for x in of_sample], rel=1e-5
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_sessions_have_advantages_of_exactly_zero(estimator: str) -> None:
    same = group_of([0.1, 0.7], [0.1, 0.7], [0.1, 0.7])
    assert advantages(ObjectiveConfig(advantage=estimator), same) == [[0.0, 0.0]] * 3


def test_turns_that_are_missing_earn_nothing_and_those_after_the_last_call_count_for_it() -> None:
    short = session(0, Reward(1.0, True, turns=(1.0,)), 2)
    long = session(1, Reward(3.0, True, turns=(0.0, 1.0, 2.0)), 2)
    group = Group(ordinal=0, start_version=0, trajectories=(short, long))
    objective = ObjectiveConfig(advantage="rloo", turn_discount=0.5)
    # Returns 1, 0 and 0 + 0.5 (1 + 0.5 x 2), 1 + 0.5 x 2.
    assert advantages(objective, group) == [pytest.approx([0.0, -2.0]), pytest.approx([0.0, 2.0])]


def test_a_users_advantage_is_asked_once_for_each_call() -> None:
    objective = ObjectiveConfig(advantage="own_objective:uncompared")
    group = group_of([1.0], [0.0, 2.0])
    assert advantages(objective, group) == [[1.0], [2.0, 2.0]]
