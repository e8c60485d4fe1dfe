"""What verdicts are worth, and how the parts of a reward add up."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freerun.config.recipe import Recipe, SamplingConfig
from freerun.config.reward import Part, RewardConfig
from freerun.errors import ConfigError
from freerun.reward.verdict import Credit, to_reward
from freerun.reward.weighted_sum import overlong_value, weigh
from freerun.types import GradeFailed, Reward

APPROXIMATELY_5: Any = pytest.approx(5.0)


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("number", [Part(1.0, "number")]),
        ("number + 0.2 * format", [Part(1.0, "number"), Part(0.2, "format")]),
        ("2*math+-.5*my_task:length", [Part(2.0, "math"), Part(-0.5, "my_task:length")]),
        ("1e+2 * format + 2E+0*exact+number", [Part(100.0, "format"), Part(2.0, "exact"), Part(1.0, "number")]),
        ("0 * exact + 1e-1 * reasoning-gym", [Part(0.0, "exact"), Part(0.1, "reasoning-gym")]),
    ],
)
def test_a_grader_is_a_name_or_a_weighted_sum(written: str, parts: list[Part]) -> None:
    assert RewardConfig(grader=written).parts == tuple(parts)


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("", 'reward.grader = "" has a term without a name; a grader is a name, or a sum such as'),
        ("number +", "has a term without a name"),
        ("0.2 *", "has a term without a name"),
        ("format * 0.2", '"format" is not a weight; a grader is a name, or a sum'),
        ("number - 0.2 * format", r'"number - 0.2" is not a weight; .*to subtract, write "\+ -0.2'),
        ("-number", r'"-number" is not the name of a grader; to subtract, write "\+ -0.2'),
        ("number - format", r'"number - format" is not the name of a grader; to subtract'),
        ("inf * number", "the weight = inf must be a number between"),
        ("number + 0.2 * number", "names number twice"),
    ],
)
def test_a_sum_that_cannot_be_read_says_what_is_wrong_with_it(written: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        RewardConfig(grader=written)


def test_a_sum_with_regex_needs_its_pattern() -> None:
    with pytest.raises(ConfigError, match=r"reward.pattern is empty"):
        RewardConfig(grader="math + 0.5 * regex")


@pytest.mark.parametrize(
    ("verdict", "reward"),
    [
        (True, Reward(5.0, True)),
        (False, Reward(-5.0, False)),
        (np.bool_(True), Reward(5.0, True)),
        (Credit(1.0), Reward(5.0, True)),
        (Credit(1 - 1e-9), Reward(APPROXIMATELY_5, True)),
        (Credit(0.75), Reward(2.5, False)),
        (Credit(0.0), Reward(-5.0, False)),
        (0.25, Reward(0.25, True)),
        (-0.25, Reward(-0.25, False)),
        (0.0, Reward(0.0, False)),
        (1, Reward(1.0, True)),
        (np.float32(0.5), Reward(0.5, True)),
        ({"solved": False, "style": 2.0}, Reward(-3.0, False, {"solved": -5.0, "style": 2.0})),
        ({"style": 2.0, "solved": False}, Reward(-3.0, True, {"style": 2.0, "solved": -5.0})),
    ],
)
def test_a_verdict_is_worth_the_configured_reward_or_its_own_value(verdict: object, reward: Reward) -> None:
    assert to_reward(verdict, "my_task:grade", RewardConfig()) == reward
    assert type(to_reward(verdict, "my_task:grade", RewardConfig()).value) is float


@pytest.mark.parametrize(
    "verdict",
    [None, "1", math.nan, math.inf, -math.inf, [1.0], 1j, np.array([1.0, 2.0]), Credit(1.5), Credit(math.nan),
     {"style": math.nan}, {"style": {"more": 1.0}}, 1e308, -1.1e9, {"style": 1e10}],
)  # fmt: skip
def test_a_verdict_that_is_none_is_refused_by_name(verdict: object) -> None:
    with pytest.raises(ValueError, match=r"my_task:grade.* returned .* of type .*; return True, False, a number"):
        to_reward(verdict, "my_task:grade", RewardConfig())


@pytest.mark.parametrize("verdict", [{}, {1: 1.0}, {"": 1.0, "\udc80": 2.0}])
def test_parts_without_names_are_refused(verdict: object) -> None:
    with pytest.raises(ValueError, match=r"my_task:grade returned .*; a dict of parts holds at least one"):
        to_reward(verdict, "my_task:grade", RewardConfig())


def test_one_part_is_the_reward_and_is_not_recorded_again() -> None:
    config = RewardConfig(grader="2 * number")
    assert weigh({"number": Reward(5.0, True)}, config, overlong=0.0) == Reward(10.0, True)


def test_parts_are_recorded_before_their_weights_and_the_first_decides() -> None:
    config = RewardConfig(grader="0 * exact + 0.5 * math + -1 * my_task:length")
    rewards = {"exact": Reward(-5.0, False), "math": Reward(5.0, True), "my_task:length": Reward(0.25, True)}
    recorded = {"exact": -5.0, "math": 5.0, "my_task:length": 0.25}
    assert weigh(rewards, config, overlong=0.0) == Reward(2.25, False, recorded)


def test_a_sum_without_an_end_is_a_failure() -> None:
    rewards = {"a:b": Reward(1e308, True), "c:d": Reward(1e308, True)}
    grade = weigh(rewards, RewardConfig(grader="a:b + c:d"), overlong=0.0)
    assert isinstance(grade, GradeFailed)
    assert "add up to inf" in grade.reason


def test_a_sum_too_large_to_train_on_is_a_failure_that_names_it() -> None:
    rewards = {"a:b": Reward(9e8, True), "c:d": Reward(9e8, True)}
    grade = weigh(rewards, RewardConfig(grader="a:b + c:d"), overlong=0.0)
    assert isinstance(grade, GradeFailed)
    assert "add up to 1800000000.0; a reward lies from -1,000,000,000 to 1,000,000,000" in grade.reason


@pytest.mark.parametrize(
    ("num_tokens", "value"), [(1, 0.0), (80, 0.0), (85, -1.0), (90, -2.0), (100, -4.0), (101, -4.0)]
)
def test_the_overlong_penalty_grows_in_the_buffer_before_the_limit(num_tokens: int, value: float) -> None:
    config = RewardConfig(overlong_buffer_tokens=20, overlong_penalty=4.0)
    assert overlong_value(num_tokens, 100, config) == value


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 100))
def test_a_longer_completion_is_never_penalised_less(length: int, more: int, buffer: int) -> None:
    config = RewardConfig(overlong_buffer_tokens=buffer, overlong_penalty=3.0)
    assert -3.0 <= overlong_value(length + more, 100, config) <= overlong_value(length, 100, config) <= 0.0


def test_without_a_buffer_length_costs_nothing() -> None:
    assert overlong_value(100, 100, RewardConfig()) == 0.0


def test_a_buffer_longer_than_a_completion_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"overlong_buffer_tokens = 300 exceeds sampling.max_completion_tokens"):
        Recipe(reward=RewardConfig(overlong_buffer_tokens=300), sampling=SamplingConfig(max_completion_tokens=256))
