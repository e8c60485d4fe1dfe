"""A warm start: supervised steps on demonstrations before version 0, with the trainer's packing and forward.

It has its own AdamW, thrown away with it: reinforcement starts from clean moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from freerun.config.train import TrainConfig
from freerun.model.decoder import Decoder
from freerun.train.batch import family_of, pack_sequences
from freerun.train.logprobs import completion_logprobs
from freerun.train.optimizer import Optimizer
from freerun.train.packing import pack_micro_batches
from freerun.train.trainer import ignore_progress
from freerun.types import Ints


class SupervisedTrainer:
    """Owns the optimizer of one warm start; updates the model's parameters in place."""

    def __init__(
        self, model: Decoder, config: TrainConfig, *, on_progress: Callable[[str], None] = ignore_progress
    ) -> None:
        self.model = model
        self._config = config
        self._on_progress = on_progress
        self._optimizer = Optimizer(model, config)

    def step(self, sequences: Sequence[tuple[Ints, Ints]], lr: float) -> float:
        """One update on (prompt_ids, completion_ids) pairs; the mean cross-entropy before it."""
        num_loss_tokens = sum(len(completion) for _, completion in sequences)
        packs = pack_micro_batches(
            [family_of(prompt, [completion]).num_tokens for prompt, completion in sequences],
            capacity=self._config.micro_batch_tokens,
        )
        total = 0.0
        for n, pack in enumerate(packs):
            packed = pack_sequences([sequences[i] for i in pack])
            loss = -completion_logprobs(self.model, packed, temperature=1.0).sum() / num_loss_tokens
            loss.backward()
            total += float(loss.detach())
            self._on_progress(f"warm start: micro-batch {n + 1}/{len(packs)}")
        self._optimizer.update(lr)
        return total
