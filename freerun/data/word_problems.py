"""Word problems: short stories with arithmetic in them, generated from a seed without a data set.

    start      "Mia has 12 marbles."  or  "Mia fills 3 boxes with 4 marbles each."        12
    step       "She buys 5 more."                                                         12 + 5 = 17
    step       "She loses 8 of them."                                                     17 - 8 = 9
    question   "How many marbles does she have now?"

Every intermediate number is whole and at least 1. A prompt's key is derived from its arithmetic and its text,
so the held-out prompts do not depend on the seed. A solved prompt shows its steps; a demonstration for SFT is a
solved prompt in which some steps take the wrong calculation.
"""

import hashlib
import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from freerun.data.task_prompt import TaskPrompt
from freerun.errors import ConfigError

MAX_STORIES = 50_000
"""Even with the smallest numbers there are more different stories than that."""
_PEOPLE = (
    ("Mia", "she"), ("Tom", "he"), ("Ana", "she"), ("Ben", "he"), ("Lena", "she"), ("Omar", "he"), ("Ivy", "she"),
    ("Raj", "he"), ("Nora", "she"), ("Luis", "he"), ("Yuki", "she"), ("Paul", "he"), ("Zoe", "she"), ("Sam", "he"),
)  # fmt: skip
_THINGS = (
    "marbles", "apples", "stickers", "shells", "pencils", "coins", "cards", "buttons", "stamps", "cookies",
    "beads", "plums", "balloons", "tickets",
)  # fmt: skip
_BOXES = ("boxes", "bags", "baskets", "jars", "tins")
_STARTS = (
    "{name} has {n} {things}.",
    "{name} finds {n} {things} in a drawer.",
    "On Monday {name} counts {n} {things}.",
    "There are {n} {things} on the table of {name}.",
)
_FILLED_STARTS = (
    "{name} fills {k} {boxes} with {n} {things} each.",
    "{name} has {k} {boxes}, and {n} {things} are in each of them.",
    "In a shop {name} takes {k} {boxes} of {n} {things}.",
)
_GAINS = (
    "{He} buys {n} more.",
    "A friend gives {name} {n} more.",
    "Then {he} finds another {n}.",
    "{He} gets {n} more from {his} aunt.",
    "In the evening {he} wins {n} more.",
)
_LOSSES = (
    "{He} gives {n} of them to a friend.",
    "{He} loses {n} of them.",
    "Then {he} sells {n} of them.",
    "{n} of them are thrown away.",
    "{He} leaves {n} of them at school.",
)
_PRODUCTS = (
    "A week later {he} has {k} times as many.",
    "By winter the number has grown to {k} times that.",
    "{He} swaps each of them for {k} new ones.",
)
_SHARES = (
    "{He} divides them equally among {k} children, {himself} included, and keeps only {his} own share.",
    "{He} sorts them into {k} equal piles and keeps one pile.",
)
_QUESTIONS = (
    "How many {things} does {name} have now?",
    "How many {things} are left to {name} in the end?",
    "What is the number of {things} that {name} has at the end?",
)
_END = ". The answer is "
_SIGNS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}


@dataclass
class _Story:
    """A story under construction."""

    rng: random.Random
    max_result: int
    words: dict[str, str]
    total: int = 0
    sentences: list[str] = field(default_factory=list)
    equations: list[str] = field(default_factory=list)

    def tell(self, templates: tuple[str, ...], **numbers: int) -> None:
        self.sentences.append(self.rng.choice(templates).format(**self.words, **numbers))

    def compute(self, left: int, sign: str, right: int, result: int) -> None:
        self.equations.append(f"{left} {sign} {right} = {result}")
        self.total = result


def prompts(
    size: int = 2000, seed: int = 0, min_steps: int = 1, max_steps: int = 2, max_number: int = 20
) -> Iterator[TaskPrompt]:
    """`size` word problems of `min_steps` to `max_steps` calculations with numbers up to `max_number`."""
    _check(size, min_steps, max_steps, max_number)
    rng, seen = random.Random(f"word-problems/{seed}"), set[str]()
    while len(seen) < size:
        prompt = _prompt(rng, rng.randint(min_steps, max_steps), max_number)
        if prompt.text not in seen:
            seen.add(prompt.text)
            yield prompt


def demonstration(prompt: TaskPrompt, rng: random.Random, error_rate: float) -> str:
    """The prompt's steps and answer, with a share of the steps replaced by another calculation."""
    equations: list[str] = []
    total: int | None = None
    for equation in prompt.shot.partition(_END)[0].split(", "):
        first, sign, second, *_ = equation.split()
        left, right = int(first) if total is None else total, int(second)
        if rng.random() < error_rate:
            sign = rng.choice([other for other in _SIGNS if other != sign])
        total = _SIGNS[sign](left, right)
        equations.append(f"{left} {sign} {right} = {total}")
    return f" {_solved(equations, total or 0)}\n"


def _solved(equations: list[str], total: int) -> str:
    return f"{', '.join(equations)}{_END}{total}."


def _check(size: int, min_steps: int, max_steps: int, max_number: int) -> None:
    for name, value, low, high in (
        ("size", size, 2, MAX_STORIES),
        ("min_steps", min_steps, 1, 6),
        ("max_steps", max_steps, min_steps, 6),
        ("max_number", max_number, 4, 10_000),
    ):
        if not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(
                f"config: data.settings: {name} = {value!r} must be a whole number from {low} to {high}"
            )


def _prompt(rng: random.Random, num_steps: int, max_number: int) -> TaskPrompt:
    story = _begin(rng, max_number)
    if rng.random() < 0.25:
        _start_filled(story, max_number)
    else:
        story.total = rng.randint(2, max_number)
        story.tell(_STARTS, n=story.total)
    while len(story.equations) < num_steps:
        rng.choice(_STEPS)(story, max_number)
    story.tell(_QUESTIONS)
    text = f"Question: {' '.join(story.sentences)}\nAnswer:"
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return TaskPrompt(
        key=f"{', '.join(story.equations)} ({digest})".replace(" = ", "="),
        text=text,
        answer=str(story.total),
        shot=_solved(story.equations, story.total),
    )


def _begin(rng: random.Random, max_number: int) -> _Story:
    name, he = rng.choice(_PEOPLE)
    his, himself = ("her", "herself") if he == "she" else ("his", "himself")
    words = {
        "name": name, "he": he, "He": he.capitalize(), "his": his, "himself": himself,
        "things": rng.choice(_THINGS), "boxes": rng.choice(_BOXES),
    }  # fmt: skip
    return _Story(rng, max_result=5 * max_number, words=words)


def _start_filled(story: _Story, max_number: int) -> None:
    num_boxes, each = story.rng.randint(2, min(6, max_number)), story.rng.randint(2, max_number)
    story.tell(_FILLED_STARTS, k=num_boxes, n=each)
    story.compute(num_boxes, "*", each, num_boxes * each)


def _gain(story: _Story, max_number: int) -> None:
    more = story.rng.randint(2, max_number)
    story.tell(_GAINS, n=more)
    story.compute(story.total, "+", more, story.total + more)


def _lose(story: _Story, max_number: int) -> None:
    if story.total < 3:
        return
    less = story.rng.randint(1, min(story.total - 1, max_number))
    story.tell(_LOSSES, n=less)
    story.compute(story.total, "-", less, story.total - less)


def _multiply(story: _Story, max_number: int) -> None:
    largest = min(5, story.max_result // story.total)
    if largest < 2:
        return
    factor = story.rng.randint(2, largest)
    story.tell(_PRODUCTS, k=factor)
    story.compute(story.total, "*", factor, story.total * factor)


def _share(story: _Story, max_number: int) -> None:
    divisors = [k for k in range(2, 7) if story.total % k == 0 and story.total > k]
    if divisors:
        parts = story.rng.choice(divisors)
        story.tell(_SHARES, k=parts)
        story.compute(story.total, "/", parts, story.total // parts)


_STEPS: tuple[Callable[[_Story, int], None], ...] = (_gain, _gain, _lose, _lose, _multiply, _share)
"""Adding and taking away are twice as likely."""
