"""The calculator environment: what is asked, what the tool says, what is rewarded."""

import asyncio
import re

import pytest
from played_sessions import ScriptedSession, lines, play

from freerun.environments.calculator import EXAMPLES, calculate, episode, prompts
from freerun.rollout.episode_run import EpisodeDone
from freerun.types import Reward

PROMPTS = list(prompts())
RIGHT, WRONG = Reward(1.0, True), Reward(0.0, False)


def reward_of(*words: str, answer: str = "111") -> Reward:
    outcome = asyncio.run(play(episode, *words, answer=answer))
    assert isinstance(outcome, EpisodeDone)
    return outcome.reward


def test_every_question_is_answered_by_one_call_of_the_calculator() -> None:
    operations = {"in each": "*", "more": "+", "gives away": "-", "shares": "/"}
    for prompt in PROMPTS:
        question = prompt.text.removeprefix(EXAMPLES)
        [operator] = [operators for words, operators in operations.items() if words in question]
        first, second = re.findall(r"\d+", question)
        assert calculate(f"{first}{operator}{second}") == prompt.answer


def test_nearly_all_questions_are_different() -> None:
    assert len({prompt.text for prompt in PROMPTS}) > 0.99 * len(PROMPTS)


def test_a_call_is_answered_and_the_right_answer_rewarded() -> None:
    session = ScriptedSession(lines("calc(128-17)\n", "Answer: 111\n"))
    outcome = asyncio.run(play(episode, session=session, text="Question: ...\n", answer="111"))
    assert isinstance(outcome, EpisodeDone)
    assert outcome.reward == RIGHT
    assert [message.content for message in session.calls[1].messages] == [
        "Question: ...\n",
        "calc(128-17)\n",
        "-> 111\n",
    ]


@pytest.mark.parametrize("said", ["Answer: 112\n", "111\n", "Answer: 111 pens\n", "Answer: <b>111</b>\n", ""])
def test_any_other_answer_is_worth_nothing(said: str) -> None:
    assert reward_of("calc(128-17)\n", said) == WRONG


def test_a_policy_that_never_stops_calling_gets_nothing() -> None:
    assert reward_of("calc(1+1)\n") == WRONG


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("12*7", "84"),
        (" 12 x 7 ", "84"),
        ("9/2", "4.50"),
        ("9/0", "error: division by zero"),
        ("2**99", "error: not an expression of two numbers"),
        ("__import__('os')", "error: not an expression of two numbers"),
        ("9" * 5000 + "*9", "error: not an expression of two numbers"),
    ],
)
def test_the_calculator_takes_two_numbers_and_nothing_else(expression: str, result: str) -> None:
    assert calculate(expression) == result
