"""The guessing environment: bisection is the best policy, and nobody shows it."""

import asyncio
import random

import pytest
from played_sessions import ScriptedSession, play

from freerun.chat.messages import ChatCall
from freerun.environments.guessing import (
    ALPHABET,
    MAX_GUESSES,
    demonstration,
    episode,
    narrowed,
    prompts,
    range_of,
)
from freerun.rollout.episode_run import EpisodeDone
from freerun.types import Reward

PROMPTS = list(prompts())


def middle(call: ChatCall) -> str:
    low, high = range_of(call.messages[-1].content.removesuffix(">"))
    return f"{(low + high) // 2}\n"


def played(script: object, *, key: str = "10-90", ordinal: int = 0) -> tuple[Reward, ScriptedSession]:
    session = ScriptedSession(script if callable(script) else lambda call: str(script))
    outcome = asyncio.run(play(episode, session=session, key=f"guessing:{key}", answer="7", ordinal=ordinal))
    assert isinstance(outcome, EpisodeDone)
    return outcome.reward, session


def test_bisection_always_finds_the_number_in_the_guesses_of_the_answer() -> None:
    rewards = [played(middle, ordinal=ordinal)[0] for ordinal in range(60)]
    assert all(reward.is_correct for reward in rewards)
    assert min(reward.value for reward in rewards) == pytest.approx(1 - 6 / MAX_GUESSES)


def test_every_prompt_says_how_many_guesses_bisection_needs_at_most() -> None:
    for prompt in random.Random(0).sample(PROMPTS, 100):
        low, high = range_of(prompt.key)
        depths = [depth(low, high, secret) for secret in range(low, high + 1)]
        assert max(depths) == int(prompt.answer) <= MAX_GUESSES


def depth(low: int, high: int, secret: int) -> int:
    num_guesses = 1
    while (guess := (low + high) // 2) != secret:
        low, high = narrowed(low, high, guess, secret)
        num_guesses += 1
    return num_guesses


def test_a_group_plays_for_the_same_number() -> None:
    games = [played(middle, ordinal=7)[1].calls[-1] for _ in range(3)]
    assert games[0] == games[1] == games[2]


@pytest.mark.parametrize("said", ["what?\n", "", "-5\n", "٣\n", "12345678901234567890\n", "²\n"])
def test_nonsense_costs_a_guess_and_tells_nothing(said: str) -> None:
    reward, session = played(said)
    assert reward == Reward(0.0, False)
    assert [call.messages[-1].content for call in session.calls] == ["10-90>"] * MAX_GUESSES


def test_the_teacher_plays_whole_games_at_random() -> None:
    rng = random.Random(0)
    games = [demonstration(prompt, rng, error_rate=0.3) for prompt in PROMPTS[:500]]
    assert all(set(game) <= set(ALPHABET) for game in games)
    assert all(game.endswith(("\n", ">")) and 1 <= game.count("\n") <= MAX_GUESSES for game in games)
    num_guesses = sum(game.count("\n") for game in games) / len(games)
    assert num_guesses > 5  # bisection of these ranges needs fewer than 5 on average
