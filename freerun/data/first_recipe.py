"""Writes a first recipe for a data file, with the reason for every choice as a comment.

The recipe can be run at once and is meant to be improved: a small model, short runs, nothing that the rows cannot
explain. Lengths are counted with the model's tokenizer if it is available, and estimated otherwise.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from freerun.config.values import as_toml
from freerun.data.first_look import SOLUTION_MARK, FirstLook
from freerun.data.rows import PromptTemplate
from freerun.data.tokenizer import Tokenizer

NUM_STEPS, PROMPTS_PER_STEP, GROUP_SIZE = 40, 8, 8
_GRADERS = {
    "number": ("number", "all answers are numbers: the last number of a completion counts"),
    "math": ("math", "answers hold mathematics: compared by value, not by spelling"),
    "code": ("code", "answers are tests in Python: a completion is a program that must pass them"),
    "short text": ("exact", "answers are short texts: a completion must be the answer"),
    "long text": ("exact", "answers are long texts, which are rarely met exactly: write your own function"),
}
_CHARACTERS_PER_TOKEN = 3
_MAX_PROMPT_TOKENS = 1024
_MAX_COMPLETION_TOKENS = 512
_MAX_CACHE_TOKENS = 32_768
_NUM_SLOTS = 64
_NUM_SHOTS = 2
_SHORT_PROMPT_TOKENS = 64
_MIN_ROWS_FOR_SHOTS = 20


@dataclass(frozen=True)
class FirstRecipe:
    """The text of a recipe, and notes for the user."""

    text: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Sizes:
    """Lengths in tokens, and settings that follow from them."""

    longest_prompt: int
    num_shots: int
    max_prompt: int
    max_completion: int
    why_completion: str
    stop: str
    """The stop string of completions; empty if the model ends them itself."""


def first_recipe(look: FirstLook, *, model: str, directory: Path) -> FirstRecipe:
    """A recipe that trains `model`, with its files in `directory`, on the rows."""
    tokenizer = _tokenizer_of(directory)
    sizes = _sizes(look, (lambda text: len(tokenizer.encode(text))) if tokenizer else _estimate)
    notes = _notes(look, sizes, None if tokenizer else model)
    grader, why = _GRADERS[look.kind]
    sections = [
        [
            f"# Made by freerun init of {len(look.rows)} rows of {look.path.name}; every line may be changed.",
            f"#   columns: {', '.join(look.columns)}",
            *(f"#   note: {note}" for note in notes),
        ],
        ["[model]", f"path = {as_toml(model)}"],
        _data_section(look, sizes),
        _sampling_section(sizes),
        ["[engine]", f"cache_tokens = {_cache_tokens(sizes.max_prompt + sizes.max_completion)}"],
        [
            "[reward]",
            f"grader = {as_toml(grader)}   # {why}",
            *(["requires_stop = true   # a completion that does not end is wrong"] if sizes.stop else []),
        ],
        ["[objective]", 'advantage = "grpo"'],
        [
            "[train]",
            f"num_steps = {NUM_STEPS}   # a first try; raise it when the reward grows",
            f"prompts_per_step = {min(PROMPTS_PER_STEP, len(look.rows) * 4 // 5)}",
            "lr = 2e-5",
        ],
    ]
    return FirstRecipe("\n\n".join("\n".join(lines) for lines in sections) + "\n", notes)


def _data_section(look: FirstLook, sizes: _Sizes) -> list[str]:
    shots = f", and {sizes.num_shots} solved ones come before it" if sizes.num_shots else ""
    lines = [
        "[data]",
        f"path = {as_toml(str(look.path))}",
        *_held_out_lines(look.path),
        f"template = {as_toml(_template(look))}   # what the model is given; {{name}} is a column",
        f"answer = {as_toml(f'{{{look.answer}}}')}",
    ]
    if look.has_solutions:
        lines.append(f"answer_after = {as_toml(SOLUTION_MARK)}   # a solution comes before it")
    if sizes.num_shots:
        lines.append(f"num_shots = {sizes.num_shots}   # solved prompts before each one show how an answer looks")
    return [*lines, f"max_prompt_tokens = {sizes.max_prompt}   # the longest has {sizes.longest_prompt}{shots}"]


def _sampling_section(sizes: _Sizes) -> list[str]:
    return [
        "[sampling]",
        f"group_size = {GROUP_SIZE}   # completions of each prompt, which are compared with each other",
        f"max_completion_tokens = {sizes.max_completion}   # {sizes.why_completion}",
        *([f"stop = {as_toml((sizes.stop,))}   # where an answer ends"] if sizes.stop else []),
    ]


def _sizes(look: FirstLook, count: Callable[[str], int]) -> _Sizes:
    template = PromptTemplate(_template(look))
    columns = {name: look.texts(name) for name in template.fields}
    filled = [template.fill({name: texts[i] for name, texts in columns.items()}) for i in range(len(look.rows))]
    longest = max(map(count, filled))
    num_shots = _num_shots(look, longest)
    stop, max_completion, why = _completions(look, count)
    with_shots = (num_shots + 1) * longest + num_shots * max_completion
    max_prompt = min(_rounded_up(with_shots, 32), _MAX_PROMPT_TOKENS)
    return _Sizes(longest, num_shots, max_prompt, max_completion, why, stop)


def _cache_tokens(sequence: int) -> int:
    return max(sequence, min(_NUM_SLOTS * sequence, _MAX_CACHE_TOKENS))


def _tokenizer_of(directory: Path) -> Tokenizer | None:
    return Tokenizer.load(directory) if (directory / "tokenizer.json").is_file() else None


def _estimate(text: str) -> int:
    return math.ceil(len(text) / _CHARACTERS_PER_TOKEN)


def _template(look: FirstLook) -> str:
    context = f"{{{look.context}}}\n" if look.context else ""
    if look.kind == "code":
        return f"# {context}{{{look.question}}}\n```python\n"
    return f"{context}Question: {{{look.question}}}\nAnswer:"


def _num_shots(look: FirstLook, longest: int) -> int:
    is_short = look.kind in ("number", "short text") and longest <= _SHORT_PROMPT_TOKENS
    return _NUM_SHOTS if is_short and not look.has_solutions and len(look.rows) >= _MIN_ROWS_FOR_SHOTS else 0


def _completions(look: FirstLook, count: Callable[[str], int]) -> tuple[str, int, str]:
    """The stop string and maximal length of completions, and the reason for them."""
    if look.has_solutions or look.kind in ("math", "code", "long text"):
        longest = _share(map(count, look.texts(look.answer)), 0.95)
        tokens = min(max(_rounded_up(longest * 3 // 2, 32), 64), _MAX_COMPLETION_TOKENS)
        shown = "solutions" if look.has_solutions else "answers"
        return ("```" if look.kind == "code" else ""), tokens, f"19 of 20 {shown} have at most {longest} tokens"
    longest = max(map(count, look.answers))
    is_one_line = not any("\n" in answer for answer in look.answers)
    tokens = min(_rounded_up(longest + 12, 8), _MAX_COMPLETION_TOKENS)
    return (
        ("\n" if is_one_line else ""),
        tokens,
        f"the longest answer has {longest}; raise it if it takes reasoning",
    )


def _share(lengths: Iterable[int], share: float) -> int:
    """The length that this share of completions does not exceed."""
    ordered = sorted(lengths)
    return ordered[math.ceil(share * len(ordered)) - 1]


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _held_out_lines(path: Path) -> list[str]:
    """Hold out a file with "test" in place of "train" in its name if it exists, else a fifth of the rows."""
    for name in ("test", "validation", "valid", "val", "dev"):
        other = path.with_name(path.name.replace("train", name))
        if other != path and other.is_file():
            return [f"held_out_path = {as_toml(str(other))}   # lies beside the training data"]
    return ["held_out_fraction = 0.2   # never trained on; every evaluation uses them"]


def _notes(look: FirstLook, sizes: _Sizes, missing_model: str | None) -> tuple[str, ...]:
    notes = []
    if missing_model:
        notes.append(f"lengths are estimated: {missing_model} has no tokenizer yet")
    if look.kind == "long text":
        notes.append(f'{_GRADERS[look.kind][1]} (reward.grader = "my_task:grade", docs/rewards.md)')
    if sizes.longest_prompt > sizes.max_prompt:
        notes.append(
            f"the longest prompt has {sizes.longest_prompt} tokens; longer than {sizes.max_prompt} are left out"
        )
    num_equal = len(look.rows) - len(set(look.texts(look.question)))
    if num_equal:
        notes.append(f"{num_equal} rows repeat a question; equal prompts are held out together")
    return tuple(notes)
