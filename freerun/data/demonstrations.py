"""Demonstrations for SFT: rows of a file, checked and turned into tokens, and the batches of each step.

    {"question": ..., "completion": ...}     template ─► prompt, untrained │ completion and end token, trained
    {"messages": [{"role", "content"}, ...]}  chat template ─► each assistant turn trained, everything else not

An assistant turn is what the chat template prints between the generation prompt and the end token that closes
the turn: exactly what the model will have to sample. For the same reason the pieces are encoded separately: a
rollout also encodes the prompt without its continuation.

An unusable row is an error that names file and line. A row that is too long is left out and counted.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from freerun.config.recipe import Recipe
from freerun.config.sft import SftConfig
from freerun.data.files import rows_of
from freerun.data.rows import PromptTemplate, RowError, convert, text_of
from freerun.data.task_prompt import epoch_order, fingerprint_of, keys_to_hold_out
from freerun.data.tasks import demonstrations_of
from freerun.data.tokenizer import Tokenizer
from freerun.errors import DataError, ModelError
from freerun.types import Demonstration, Ints

Batches = Iterator[list[Demonstration]]


@dataclass(frozen=True)
class SftData:
    """What SFT trains on, step by step."""

    num_steps: int
    batches: Callable[[int], Batches]
    """The batches from this step on; they depend only on the recipe and its seed."""
    held_out: tuple[Demonstration, ...] = ()
    fingerprint: str = ""
    """A hash of the file's tokens in order: a resumed run must find the same one."""
    summary: str = ""


def open_sft_data(recipe: Recipe, tokenizer: Tokenizer) -> SftData:
    """The file of `sft.path`, read and checked, or the endless demonstrations of the task."""
    if recipe.sft.path:
        return _file_data(read_demonstrations(recipe.sft, tokenizer), recipe.sft, seed=recipe.run.seed)
    return SftData(recipe.sft.num_steps, lambda step: _task_batches(recipe, tokenizer, step))


def _task_batches(recipe: Recipe, tokenizer: Tokenizer, step: int) -> Batches:
    size, num_steps = recipe.sft.batch_size, recipe.sft.num_steps
    texts = demonstrations_of(recipe.data, seed=recipe.run.seed, error_rate=recipe.sft.error_rate)
    texts = islice(texts, step * size, num_steps * size)
    while batch := list(islice(texts, size)):
        yield [
            demonstration_of(tokenizer.encode(prompt), tokenizer.encode(completion, add_special_tokens=False))
            for prompt, completion in batch
        ]


def _file_data(data: "Demonstrations", config: SftConfig, *, seed: int) -> SftData:
    """Each epoch is a permutation of the rows; a batch may extend into the next epoch."""
    rows, size = data.training, config.batch_size
    end = config.num_steps * size or config.num_epochs * len(rows)
    num_steps = math.ceil(end / size)

    order = lru_cache(maxsize=2)(partial(epoch_order, len(rows), seed=seed))

    def batches(step: int) -> Batches:
        for start in range(step * size, end, size):
            places = range(start, min(start + size, end))
            yield [rows[order(epoch=place // len(rows))[place % len(rows)]] for place in places]

    return SftData(num_steps, batches, data.held_out, data.fingerprint, data.summary)


@dataclass(frozen=True)
class Demonstrations:
    """The usable rows of a file, in its order; a hash, not the seed, decides which are held out."""

    training: tuple[Demonstration, ...]
    held_out: tuple[Demonstration, ...]
    num_too_long: int

    @property
    def fingerprint(self) -> str:
        """A hash that is equal for the same tokens in the same order."""
        rows = (*self.training, *self.held_out)
        return fingerprint_of(part.tobytes() for row in rows for part in (row.token_ids, row.is_trained))

    @property
    def summary(self) -> str:
        num_trained = sum(row.num_trained for row in self.training)
        too_long = f", {self.num_too_long} over sft.max_tokens left out" if self.num_too_long else ""
        return (
            f"{len(self.training)} rows to train on ({num_trained:,} tokens with loss), "
            f"{len(self.held_out)} held out{too_long}"
        )


def demonstration_of(prompt_ids: Ints, completion_ids: Ints) -> Demonstration:
    """A demonstration of an untrained prompt and a trained completion."""
    return _joined([(prompt_ids, False), (completion_ids, True)])


def read_demonstrations(config: SftConfig, tokenizer: Tokenizer) -> Demonstrations:
    """All rows of the file; raises an error that names the first bad ones."""
    path = Path(config.path)
    make = _row_maker(tokenizer, config)
    rows = convert(rows_of(path), lambda key, row: make(row))
    if not rows:
        raise DataError(f"{path}: the file has no rows; each must be one JSON object, or one row of a table")
    usable = [(key, row) for key, row in rows if len(row.token_ids) <= config.max_tokens]
    if not usable:
        shortest = min(len(row.token_ids) for _, row in rows)
        raise DataError(
            f"{path}: all {len(rows)} rows exceed sft.max_tokens = {config.max_tokens}; raise it to {shortest} or "
            "more, the length of the shortest"
        )
    return _split(usable, config.held_out_fraction, num_too_long=len(rows) - len(usable))


def _split(rows: Sequence[tuple[str, Demonstration]], fraction: float, *, num_too_long: int) -> Demonstrations:
    """Hold out a fraction; equal rows are on the same side."""
    contents = {key: row.token_ids.tobytes() for key, row in rows}
    held_out = keys_to_hold_out(contents, round(fraction * len(rows)))
    if fraction and not 0 < len(held_out) < len(rows):
        raise DataError(
            f"sft.held_out_fraction = {fraction} of {len(rows)} rows leaves none to "
            f"{'train on' if held_out else 'measure'}; change it, set it to 0, or add rows"
        )
    return Demonstrations(
        training=tuple(row for key, row in rows if key not in held_out),
        held_out=tuple(row for key, row in rows if key in held_out),
        num_too_long=num_too_long,
    )


def _row_maker(tokenizer: Tokenizer, config: SftConfig) -> "_TemplateRows | _ChatRows":
    if config.template:
        return _TemplateRows(tokenizer, config)
    if not tokenizer.has_chat_template:
        raise DataError(
            "chat rows need a model with a chat template, and this one has none; set a template for the prompt, "
            'such as sft.template = "Question: {question}\\nAnswer:", or use a chat model'
        )
    return _ChatRows(tokenizer)


class _TemplateRows:
    """Prompts from a template, completions from a field."""

    def __init__(self, tokenizer: Tokenizer, config: SftConfig) -> None:
        self._tokenizer = tokenizer
        self._template = PromptTemplate(config.template, setting="sft.template")
        self._completion_field = config.completion_field

    def __call__(self, row: Mapping[str, Any]) -> Demonstration:
        values = {name: text_of(row, name, setting="sft.template") for name in self._template.fields}
        as_text = self._tokenizer.as_text  # special tokens come from the template
        prompt = self._template.fill({name: as_text(value) for name, value in values.items()})
        prompt_ids = _encode(self._tokenizer, prompt, add_special_tokens=True)
        if len(prompt_ids) == 0 or not any(value.strip() for value in values.values()):
            raise RowError("the prompt is empty; fill it or remove the row")
        completion = text_of(row, self._completion_field, setting="sft.completion_field")
        completion_ids = self._completion_ids(completion)
        if not completion.strip() or len(completion_ids) == 0:
            raise RowError(f'field "{self._completion_field}" is empty; fill it or remove the row')
        return demonstration_of(prompt_ids, self._with_end(completion_ids))

    def _completion_ids(self, completion: str) -> Ints:
        """Special tokens in a completion are text, but an end token at its end is the token."""
        text, end = completion, ""
        for name in self._tokenizer.special_tokens_in(completion)[-1:]:
            is_end = np.isin(_encode(self._tokenizer, name), self._tokenizer.stop_token_ids).all()
            if is_end and completion.endswith(name):
                text, end = completion.removesuffix(name), name
        return _encode(self._tokenizer, self._tokenizer.as_text(text) + end)

    def _with_end(self, completion_ids: Ints) -> Ints:
        stop_ids = self._tokenizer.stop_token_ids
        if not stop_ids or completion_ids[-1] in stop_ids:
            return completion_ids
        return np.append(completion_ids, np.int32(stop_ids[0]))


class _ChatRows:
    """Whole conversations through the model's chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, row: Mapping[str, Any]) -> Demonstration:
        messages = _messages_of(row)
        pieces: list[tuple[Ints, bool]] = []
        done = ""
        for index in [i for i, message in enumerate(messages) if message["role"] == "assistant"]:
            before = self._render(messages[:index], add_generation_prompt=True)
            after = self._render(messages[: index + 1], add_generation_prompt=False)
            if not before.startswith(done) or not after.startswith(before):
                raise RowError(
                    f"the chat template prints message {index + 1} in a way that depends on what follows it, so "
                    "its tokens cannot be told apart; use a row for each assistant turn, as the last message"
                )
            pieces.append((_encode(self._tokenizer, before[len(done) :]), False))
            pieces += self._turn(after[len(before) :], index)
            done = after
        if len(pieces[0][0]) == 0:
            raise RowError("the chat begins with the assistant's text; begin it with a user message")
        return _joined(pieces)

    def _render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        try:
            return self._tokenizer.render_chat(messages, add_generation_prompt=add_generation_prompt)
        except ModelError as error:
            raise RowError(str(error)) from error

    def _turn(self, text: str, index: int) -> list[tuple[Ints, bool]]:
        """The pieces of a turn, trained up to its end token: text that follows it is never sampled."""
        ids = _encode(self._tokenizer, text)
        ends = np.flatnonzero(np.isin(ids, self._tokenizer.stop_token_ids))
        num_trained = int(ends[-1]) + 1 if len(ends) else len(ids)
        if num_trained == 0:
            raise RowError(f"message {index + 1}, the assistant's, has no tokens; fill it or remove the row")
        return [(ids[:num_trained], True), (ids[num_trained:], False)]


def _messages_of(row: Mapping[str, Any]) -> list[dict[str, str]]:
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        there = ", ".join(f'"{field}"' for field in row) or "none"
        raise RowError(
            f'no list of chat messages in field "messages" (fields: {there}); add it, or set sft.template, the '
            "template of the prompt"
        )
    for number, message in enumerate(messages, start=1):
        is_message = isinstance(message, dict) and all(
            isinstance(message.get(name), str) for name in ("role", "content")
        )
        if not is_message:
            raise RowError(f'message {number} is not an object with the strings "role" and "content"')
    if not any(message["role"] == "assistant" and message["content"].strip() for message in messages):
        raise RowError('no message of role "assistant" says anything, so there is nothing to train on')
    return messages


def _joined(pieces: Sequence[tuple[Ints, bool]]) -> Demonstration:
    return Demonstration(
        token_ids=np.concatenate([ids for ids, _ in pieces]).astype(np.int32),
        is_trained=np.concatenate([np.full(len(ids), is_trained) for ids, is_trained in pieces]),
    )


def _encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> Ints:
    try:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except ModelError as error:
        raise RowError(str(error)) from error
