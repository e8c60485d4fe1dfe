"""The stream of prompts: endless, seeded, and addressed by a number.

    ordinal  0 ... n-1 | n ... 2n-1 | 2n ...          held out  -1  -2  -3 ...
             epoch 0     epoch 1      epoch 2

Every epoch is a permutation of the training problems that depends on the seed and the epoch only, so any
ordinal can be looked up at any time: a checkpoint keeps integers (the cursor, the ordinals still owed), never
prompts or the state of a random generator. Held-out prompts have negative ordinals and so never meet the
ledger of training.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Protocol

from freerun.config.data import DataConfig
from freerun.data.problem import Problem, Problems
from freerun.data.tokenizer import Tokenizer
from freerun.data.wording import WordedProblem, Wording
from freerun.errors import DataError
from freerun.types import Prompt

_NUM_EPOCHS_KEPT = 4
"""Orders remembered: prompts given back and resumed ones come from an epoch or two ago."""


class PromptStream(Protocol):
    """An endless stream of prompts that is addressed by ordinals: one source, or a mixture of several."""

    cursor: int
    """Ordinal that `take` gives next; set it to resume."""

    @property
    def epoch_size(self) -> int: ...

    @property
    def num_too_long(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def at(self, ordinal: int) -> Prompt: ...

    def take(self) -> Prompt: ...

    def held_out(self, limit: int) -> list[Prompt]: ...

    def training(self) -> list[Prompt]: ...

    def problems(self) -> Problems: ...


class PromptSource:
    """Prompts by ordinal, and a cursor that walks over them."""

    def __init__(self, problems: Problems, tokenizer: Tokenizer, *, config: DataConfig, seed: int) -> None:
        self.cursor = 0
        """Ordinal that `take` gives next; set it to resume."""
        self._config = config
        self._seed = seed
        wording = Wording(config, problems.shots, tokenizer)
        self._training = self._usable(problems.training, wording)
        self._held_out = self._usable(problems.held_out, wording)
        self.num_too_long = (
            len(problems.training) + len(problems.held_out) - len(self._training) - len(self._held_out)
        )
        """Problems left out, of both kinds, because they exceed `data.max_prompt_tokens`."""
        self._order = lru_cache(maxsize=_NUM_EPOCHS_KEPT)(self._shuffled)

    @property
    def epoch_size(self) -> int:
        """Prompts in one epoch: the training problems that are not too long."""
        return len(self._training)

    @cached_property
    def fingerprint(self) -> str:
        """A hash over the training prompts and answers: the same ordinals mean the same prompts."""
        digest = hashlib.sha256()
        for worded in self._training:
            problem = worded.problem
            for part in (problem.key.encode(), problem.answer.encode(), worded.token_ids.tobytes()):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()

    def at(self, ordinal: int) -> Prompt:
        """The prompt with this ordinal, whatever was asked before."""
        if ordinal < 0:
            raise ValueError(f"ordinal {ordinal} is negative: that is a held-out prompt, not one of the stream")
        epoch, position = divmod(ordinal, self.epoch_size)
        return self._as_prompt(ordinal, self._training[self._order(epoch)[position]])

    def take(self) -> Prompt:
        """The prompt at the cursor, which moves on."""
        prompt = self.at(self.cursor)
        self.cursor += 1
        return prompt

    def held_out(self, limit: int) -> list[Prompt]:
        """The first `limit` held-out prompts, the same in every run."""
        return [self._as_prompt(-1 - i, worded) for i, worded in enumerate(self._held_out[:limit])]

    def training(self) -> list[Prompt]:
        """Every training prompt once: the first epoch."""
        return [self.at(ordinal) for ordinal in range(self.epoch_size)]

    def problems(self) -> Problems:
        """The problems that are asked: all but those that are too long."""
        return Problems(
            training=tuple(worded.problem for worded in self._training),
            held_out=tuple(worded.problem for worded in self._held_out),
        )

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(self.epoch_size))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order

    def _as_prompt(self, ordinal: int, worded: WordedProblem) -> Prompt:
        return Prompt(
            ordinal=ordinal,
            key=self._key(worded.problem),
            text=worded.text,
            answer=worded.problem.answer,
            token_ids=worded.token_ids,
        )

    def _key(self, problem: Problem) -> str:
        """For people: a row already names its file, another problem its task."""
        return problem.key if self._config.reads_rows else f"{self._config.task}:{problem.key}"

    def _usable(self, problems: Iterable[Problem], wording: Wording) -> list[WordedProblem]:
        limit = self._config.max_prompt_tokens
        worded = [wording.of(problem) for problem in problems]
        for each in worded:
            if len(each.token_ids) == 0:
                raise DataError(
                    f"{self._key(each.problem)}: the tokenizer knows no character of {each.text!r}; "
                    "use a model whose tokenizer fits the task"
                )
        usable = [each for each in worded if len(each.token_ids) <= limit]
        if worded and not usable:
            shortest = min(len(each.token_ids) for each in worded)
            raise DataError(
                f"data.max_prompt_tokens = {limit} leaves out all {len(worded)} problems (such as "
                f"{self._key(worded[0].problem)}); raise it to {shortest} or more, the length of the shortest"
            )
        return usable
