"""The prompt stream: endless, seeded, and addressed by ordinal.

    ordinal  0 ... n-1 | n ... 2n-1 | 2n ...          held out  -1  -2  -3 ...
             epoch 0     epoch 1      epoch 2

Every epoch is a permutation of the training prompts that depends only on the seed and the epoch, so any ordinal
can be looked up at any time: a checkpoint stores integers (the cursor and the ordinals to restart), never
prompts or the state of a random generator. Held-out prompts have negative ordinals, which keeps them out of the
training ledger.
"""

from collections.abc import Iterable
from functools import cached_property, lru_cache, partial

import msgspec

from freerun.config.data import DataConfig
from freerun.data.task_prompt import TaskPrompt, TaskPrompts, epoch_order, fingerprint_of
from freerun.data.tokenizer import Tokenizer
from freerun.data.wording import RowUse, Wording
from freerun.errors import DataError
from freerun.types import Prompt

_NUM_EPOCHS_KEPT = 4
"""Number of cached orders: requeued and resumed prompts come from an epoch or two ago."""
_Asked = tuple[TaskPrompt, Prompt]
"""A prompt of the task, and the prompt given to the model, without its ordinal."""


class PromptSource:
    """The prompts of one task by ordinal, with a cursor."""

    def __init__(
        self,
        prompts: TaskPrompts,
        tokenizer: Tokenizer,
        *,
        config: DataConfig,
        seed: int,
        row_use: RowUse = "none",
    ) -> None:
        self.cursor = 0
        """Ordinal of the next prompt from `take`; set it to resume."""
        wording = Wording(config, prompts.shots, tokenizer, row_use=row_use)
        self._training = _usable(prompts.training, wording, config.max_prompt_tokens)
        self._held_out = _usable(prompts.held_out, wording, config.max_prompt_tokens)
        self.num_too_long = (
            len(prompts.training) + len(prompts.held_out) - len(self._training) - len(self._held_out)
        )
        """Number of training and held-out prompts left out because they exceed `data.max_prompt_tokens`."""
        self._order = lru_cache(maxsize=_NUM_EPOCHS_KEPT)(partial(epoch_order, self.epoch_size, seed=seed))

    @property
    def epoch_size(self) -> int:
        """Number of training prompts in one epoch, without those that are too long."""
        return len(self._training)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the training prompts and answers, which shows that ordinals mean the same prompts."""
        return fingerprint_of(
            part
            for asked, prompt in self._training
            for part in (asked.key.encode(), asked.answer.encode(), prompt.token_ids.tobytes())
        )

    def at(self, ordinal: int) -> Prompt:
        """The prompt with this ordinal, at any time and in any order."""
        if ordinal < 0:
            raise ValueError(f"ordinal {ordinal} is negative: that is a held-out prompt, not one of the stream")
        epoch, position = divmod(ordinal, self.epoch_size)
        return _numbered(ordinal, self._training[self._order(epoch=epoch)[position]])

    def take(self) -> Prompt:
        """Return the prompt at the cursor and advance the cursor."""
        prompt = self.at(self.cursor)
        self.cursor += 1
        return prompt

    def held_out(self, limit: int) -> list[Prompt]:
        """The first `limit` held-out prompts, the same in every run."""
        return [_numbered(-1 - i, asked) for i, asked in enumerate(self._held_out[:limit])]

    def training(self) -> list[Prompt]:
        """Every training prompt once: the first epoch."""
        return [self.at(ordinal) for ordinal in range(self.epoch_size)]

    def prompts(self) -> TaskPrompts:
        """The task's prompts without those that are too long."""
        return TaskPrompts(
            training=tuple(asked for asked, _ in self._training),
            held_out=tuple(asked for asked, _ in self._held_out),
        )


def _numbered(ordinal: int, asked: _Asked) -> Prompt:
    return msgspec.structs.replace(asked[1], ordinal=ordinal)


def _usable(prompts: Iterable[TaskPrompt], wording: Wording, max_tokens: int) -> list[_Asked]:
    """The prompts that are not too long, with the prompts given to the model."""
    asked = [(prompt, wording.of(prompt)) for prompt in prompts]
    for _, prompt in asked:
        if len(prompt.token_ids) == 0:
            raise DataError(
                f"{prompt.key}: the tokenizer knows no character of {prompt.text!r}; "
                "use a model whose tokenizer fits the task"
            )
    usable = [pair for pair in asked if len(pair[1].token_ids) <= max_tokens]
    if asked and not usable:
        shortest = min(len(prompt.token_ids) for _, prompt in asked)
        raise DataError(
            f"data.max_prompt_tokens = {max_tokens} leaves out all {len(asked)} prompts (such as "
            f"{asked[0][1].key}); raise it to {shortest} or more, the length of the shortest"
        )
    return usable
