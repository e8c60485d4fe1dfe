"""Word problems with a calculator: the policy must choose the operation, call the tool, and report its result.

    Question: Tom has 128 pens and gives away 17. How many pens are left?
    calc(128-17)          sampled
    -> 111                given: what the tool returned
    Answer: 111           sampled

The numbers are too large for a small model to compute itself, so an answer without a call is nearly always
wrong. Two solved examples at the top of every prompt show the format. The text is plain, without a chat
template, so a base model can do it too.
"""

import random
import re
from collections.abc import Iterator

from freerun.data.task_prompt import TaskPrompt
from freerun.rollout.episode import Policy, Task

MAX_CALLS = 2
"""A policy that makes more calls does not answer, and gets nothing."""
EXAMPLES = """\
Use calc(expression) for arithmetic.

Question: Kim has 14 boxes with 23 pins in each. How many pins are there?
calc(14*23)
-> 322
Answer: 322

Question: Kim has 230 pins and gives away 45. How many pins are left?
calc(230-45)
-> 185
Answer: 185

"""
NAMES = ("Tom", "Ann", "Sam", "Eve", "Max", "Zoe", "Ben", "Ida", "Leo", "Mia")
THINGS = ("apples", "pens", "coins", "books", "shells", "stamps", "cards", "nuts", "cups", "keys")
NUM_PROMPTS = 2000

_CALL = re.compile(r"calc\((.*?)\)")
_ANSWER = re.compile(r"Answer:\s*(-?\d+)\.?")
_EXPRESSION = re.compile(r"\s*(\d{1,6})\s*([-+*/x])\s*(\d{1,6})\s*")


def prompts() -> Iterator[TaskPrompt]:
    """The same word problems in every run: four kinds, with two- and three-digit numbers."""
    rng = random.Random(0)
    for number in range(NUM_PROMPTS):
        question, answer = _problem(rng)
        yield TaskPrompt(key=str(number), text=f"{EXAMPLES}Question: {question}\n", answer=str(answer))


async def episode(task: Task, policy: Policy) -> float:
    """1 for the right answer, else 0."""
    chat, text = policy.chat(), task.text
    for _ in range(MAX_CALLS + 1):
        reply = await chat.say(text)
        call = _CALL.search(reply.text)
        if call is None:
            answer = _ANSWER.fullmatch(reply.text.strip())
            is_right = answer is not None and answer[1] == task.answer
            return float(is_right and reply.finish_reason == "stop")
        text = f"-> {calculate(call[1])}\n"
    return 0.0


def calculate(expression: str) -> str:
    """The value of an expression with two numbers and an operator, or what is wrong with it."""
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        return "error: not an expression of two numbers"
    a, operator, b = int(match[1]), match[2], int(match[3])
    if operator == "/":
        if b == 0:
            return "error: division by zero"
        return str(a // b) if a % b == 0 else f"{a / b:.2f}"
    return str({"+": a + b, "-": a - b, "*": a * b, "x": a * b}[operator])


def _problem(rng: random.Random) -> tuple[str, int]:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    small, large = sorted((rng.randint(12, 99), rng.randint(12, 99)))
    match rng.randrange(4):
        case 0:
            return (
                f"{name} has {small} bags with {large} {things} in each. How many {things} are there?",
                small * large,
            )
        case 1:
            return (
                f"{name} has {large} {things} and finds {small} more. How many {things} are there now?",
                large + small,
            )
        case 2:
            large += 100
            return (
                f"{name} has {large} {things} and gives away {small}. How many {things} are left?",
                large - small,
            )
        case _:
            share, friends = rng.randint(12, 60), rng.randint(3, 9)
            shared = f"{name} shares {share * friends} {things} equally among {friends} friends."
            return f"{shared} How many {things} does each get?", share
