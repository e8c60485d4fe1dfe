"""SFT: supervised steps on demonstrations, with the packing and the forward pass of the policy trainer.

The loss is the mean cross-entropy over the trained tokens of the whole batch, however it is packed. The decoder
reads each demonstration up to, but not including, its last trained token:

    tokens      s0 u0 u1 a0 a1 u2 a2 e0         a: the assistant's, trained     e: after the end
    read        s0 u0 u1 a0 a1 u2
    predictors        2  3     5                targets a0 a1 a2
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from freerun.config.train import TrainConfig
from freerun.model.attention import Family, packed_positions
from freerun.model.decoder import Decoder
from freerun.model.device import resolve_dtype
from freerun.trainer.batch import PackedSequences, idle_sequences, on_device
from freerun.trainer.logprobs import completion_logprobs
from freerun.trainer.optimizer import Optimizer
from freerun.trainer.packing import pack_for_ranks
from freerun.trainer.ranks import Ranks, SingleRank, add_numbers
from freerun.trainer.trainer import ignore_progress
from freerun.types import Demonstration, Doing


class SupervisedTrainer:
    """Owns the optimizer of SFT; updates the model's parameters in place."""

    def __init__(
        self,
        model: Decoder,
        config: TrainConfig,
        *,
        on_progress: Callable[[Doing], None] = ignore_progress,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self._config = config
        self._on_progress = on_progress
        self._ranks = ranks or SingleRank()
        model.recompute_blocks(config.recompute_activations)
        self._optimizer = Optimizer(model, config, ranks=self._ranks)

    def step(self, demonstrations: Sequence[Demonstration], lr: float) -> float:
        """One update; returns the mean cross-entropy before it."""
        num_trained = sum(d.num_trained for d in demonstrations)
        micro_batches = self._micro_batches(demonstrations)
        total = 0.0
        for n, micro_batch in enumerate(micro_batches):
            self._on_progress(Doing("training", "SFT", n + 1, len(micro_batches)))
            loss = self._summed_loss(micro_batch) / num_trained
            loss.backward()
            total += float(loss.detach())
        self._on_progress(Doing("training", "SFT, update of the weights"))
        self._optimizer.update(lr)
        return add_numbers(self._ranks, [total])[0]

    @torch.no_grad()
    def loss(self, demonstrations: Sequence[Demonstration]) -> float:
        """The mean cross-entropy of held-out demonstrations."""
        num_trained = sum(d.num_trained for d in demonstrations)
        micro_batches = self._micro_batches(demonstrations)
        total = 0.0
        for n, micro_batch in enumerate(micro_batches):
            self._on_progress(Doing("training", "SFT, held-out rows", n + 1, len(micro_batches)))
            total += float(self._summed_loss(micro_batch))
        return add_numbers(self._ranks, [total])[0] / num_trained

    def optimizer_state(self) -> dict[str, Tensor]:
        """Live tensors, as shares on a rank; write them out before the next step."""
        return self._optimizer.state()

    def load_optimizer_state(self, tensors: Mapping[str, Tensor]) -> None:
        self._optimizer.load_state(tensors)

    def _micro_batches(self, demonstrations: Sequence[Demonstration]) -> list[PackedSequences]:
        """The micro-batches of this rank; every rank has the same number."""
        by_rank = pack_for_ranks(
            [num_read_tokens(d) for d in demonstrations],
            capacity=self._config.micro_batch_tokens,
            num_ranks=self._ranks.num_ranks,
        )
        idle = idle_sequences(int(demonstrations[0].token_ids[0]))
        device = self.model.embedding.weight.device
        return [
            on_device(pack_demonstrations([demonstrations[i] for i in pack]) if pack else idle, device)
            for pack in by_rank[self._ranks.rank]
        ]

    def _summed_loss(self, packed: PackedSequences) -> Tensor:
        dtype = resolve_dtype(self._config.dtype)
        return -completion_logprobs(self.model, packed, temperature=1.0, dtype=dtype).sum()


def num_read_tokens(demonstration: Demonstration) -> int:
    """Number of tokens before the last trained one; the loss needs no hidden states after it."""
    return int(np.flatnonzero(demonstration.is_trained)[-1])


def pack_demonstrations(demonstrations: Sequence[Demonstration]) -> PackedSequences:
    """Lay demonstrations end to end, each with the predictors of its trained tokens."""
    lengths = [num_read_tokens(d) for d in demonstrations]
    begins = np.cumsum([0, *lengths[:-1]])
    families = [Family(length) for length in lengths]
    predictors = [
        begin + np.flatnonzero(d.is_trained) - 1 for begin, d in zip(begins, demonstrations, strict=True)
    ]
    read = [d.token_ids[:length] for d, length in zip(demonstrations, lengths, strict=True)]
    targets = [d.token_ids[d.is_trained] for d in demonstrations]
    token_ids_T, predictors_L, targets_L = (
        torch.from_numpy(np.concatenate(parts).astype(np.int64)) for parts in (read, predictors, targets)
    )
    return PackedSequences(
        token_ids_T=token_ids_T,
        positions_T=packed_positions(families),
        families=tuple(families),
        predictors_L=predictors_L,
        targets_L=targets_L,
    )
