"""From trajectories to the flat tensors of one micro-batch: packed, without padding, each prompt once.

    prompt      p0 p1 p2
    completions          a0 a1 a2        the decoder reads   p0 p1 p2 a0 a1 b0
                         b0 b1           positions            0  1  2  3  4  3
                                         predictors           2  3  4 | 2  5   (where the hidden states are)
                                         targets             a0 a1 a2 |b0 b1

The hidden state of a token predicts the next one, so logits are computed at the predictors only, and the last
token of a sequence is never read: its hidden state is not needed. Adjacent samples of one prompt share it: its
last hidden state predicts the first token of each. Tokens given to the policy between its calls are read like
all others, but nothing predicts them. Which tokens are trained on follows from lengths and spans alone, not
from ids: a policy can sample the pad or end-of-sequence id.

Shapes: T packed tokens read by the decoder, L loss tokens (the sampled tokens of all completions, in the same
order), K calls.
"""

# ruff: noqa: N815 - the fields are tensors, and tensors carry their shape in the name

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from freerun.model.attention import Family, packed_positions
from freerun.trainer.advantage import Floats64
from freerun.types import Ints, Trajectory

B = TypeVar("B", bound="PackedSequences | MicroBatch")


@dataclass(frozen=True)
class PackedSequences:
    """Sequences laid end to end: what the decoder reads, and what it predicts where."""

    token_ids_T: Tensor
    positions_T: Tensor
    families: tuple[Family, ...]
    """How T divides into prompts and completions."""
    predictors_L: Tensor
    """Indices into T: the hidden states that predict the completion tokens."""
    targets_L: Tensor

    @property
    def num_loss_tokens(self) -> int:
        return self.targets_L.numel()

    def only(self, is_trained_L: Tensor) -> PackedSequences:
        """Read the same tokens but predict only these."""
        return replace(self, predictors_L=self.predictors_L[is_trained_L], targets_L=self.targets_L[is_trained_L])


class Rated(NamedTuple):
    """A trajectory with the advantages and the weight of its sampled tokens (`rating.py`)."""

    trajectory: Trajectory
    advantages: Floats64
    """One per sampled token; zeros if a critic sets them."""
    token_weight: float
    """Weight of each sampled token in the step's loss (`aggregation.py`)."""
    places: Ints | None = None
    """With a critic: positions of its sampled tokens in the step's timeline (`timeline.py`)."""
    place: int = 0
    """Index of the trajectory in the batch."""

    @property
    def num_read_tokens(self) -> int:
        return len(self.trajectory.prompt.token_ids) + len(self.trajectory.completion.token_ids) - 1


@dataclass(frozen=True)
class MicroBatch:
    """Packed trajectories and, for each sampled token, everything a loss needs besides the forward pass.

    Fields that default to None are filled in at the start of the step if the objective needs them
    (`preparation.py`).
    """

    packed: PackedSequences
    call_lengths_K: Tensor
    """Number of tokens of each call, trajectory after trajectory; sums to L."""
    behaviour_logprobs_L: Tensor
    versions_L: Tensor
    advantages_L: Tensor
    token_weights_L: Tensor
    places_L: Tensor | None = None
    """With a critic: positions of the tokens in the step's timeline (`timeline.py`)."""
    proximal_logprobs_L: Tensor | None = None
    """None also if the training pass's own forward is the proximal one."""
    reference_logprobs_L: Tensor | None = None
    values_L: Tensor | None = None
    """The critic's values at the start of the step."""
    returns_L: Tensor | None = None
    """The critic's targets."""
    is_kept_L: Tensor | None = None
    """Whether M2PO trains on each token."""
    indices: tuple[int, ...] = ()
    """Indices of its trajectories in the step's batch; empty on a rank that has none."""
    trajectory_lengths: tuple[int, ...] = ()
    """Number of sampled tokens of each trajectory; sums to L."""


def family_of(prompt_ids: Ints, completions: Sequence[Ints]) -> Family:
    """What the decoder reads of a prompt and its completions: all but the last token of each sequence."""
    if len(completions) == 1:
        return Family(len(prompt_ids) + len(completions[0]) - 1)
    return Family(len(prompt_ids), tuple(len(completion) - 1 for completion in completions))


def pack_sequences(sequences: Sequence[tuple[Ints, Ints]]) -> PackedSequences:
    """Lay (prompt_ids, completion_ids) pairs end to end; adjacent equal prompts are laid out once."""
    families: list[Family] = []
    token_ids: list[Ints] = []
    predictors: list[Ints] = []
    begin = 0
    for _, members in groupby(sequences, key=lambda pair: pair[0].tobytes()):
        prompt, completions = _unzip(members)
        families.append(family_of(prompt, completions))
        token_ids += [prompt, *(completion[:-1] for completion in completions)]
        branch = begin + len(prompt)
        for completion in completions:
            own = np.arange(branch, branch + len(completion) - 1)
            predictors += [np.array([begin + len(prompt) - 1]), own]
            branch += len(own)
        begin = branch
    return PackedSequences(
        token_ids_T=_flat(token_ids, np.int64),
        positions_T=packed_positions(families),
        families=tuple(families),
        predictors_L=_flat(predictors, np.int64),
        targets_L=_flat([completion for _, completion in sequences], np.int64),
    )


def _unzip(members: Iterable[tuple[Ints, Ints]]) -> tuple[Ints, list[Ints]]:
    """The prompt that all members share, and their completions."""
    prompts, completions = zip(*members, strict=True)
    return prompts[0], list(completions)


def pack_trajectories(rated: Sequence[Rated]) -> MicroBatch:
    """One micro-batch of whole trajectories, with loss on their sampled tokens."""
    trajectories = [r.trajectory for r in rated]
    completions = [t.completion for t in trajectories]
    is_sampled = [c.is_sampled for c in completions]
    packed = pack_sequences([(t.prompt.token_ids, t.completion.token_ids) for t in trajectories])
    places = [r.places for r in rated if r.places is not None]
    return MicroBatch(
        packed=packed.only(_flat(is_sampled, np.bool_)),
        call_lengths_K=_flat([_run_lengths(c.calls) for c in completions], np.int64),
        behaviour_logprobs_L=_flat(
            [c.logprobs[s] for c, s in zip(completions, is_sampled, strict=True)], np.float32
        ),
        versions_L=_flat([c.versions for c in completions], np.int64),
        advantages_L=_flat([r.advantages for r in rated], np.float32),
        token_weights_L=_flat([np.full(len(r.advantages), r.token_weight) for r in rated], np.float32),
        places_L=_flat(places, np.int64) if places else None,
        indices=tuple(r.place for r in rated),
        trajectory_lengths=tuple(len(r.advantages) for r in rated),
    )


def _run_lengths(values: Ints) -> Ints:
    """Length of each run of equal consecutive values."""
    ends = np.flatnonzero(np.append(np.diff(values) != 0, True)) + 1
    return np.diff(ends, prepend=0)


def idle_sequences(token_id: int) -> PackedSequences:
    """A single token with nothing to predict: what a rank reads in a round in which it has no micro-batch.

    All ranks take part in every forward and backward. Without loss tokens every gradient is exactly 0, unless the
    activations of the one token read are not finite. The caller passes the first token of a sequence that another
    rank has in the same minibatch: in that case the update is skipped anyway.
    """
    nothing = torch.empty(0, dtype=torch.int64)
    families = (Family(1),)
    return PackedSequences(
        token_ids_T=torch.tensor([token_id]),
        positions_T=packed_positions(families),
        families=families,
        predictors_L=nothing,
        targets_L=nothing,
    )


def idle_micro_batch(token_id: int) -> MicroBatch:
    """A micro-batch without trajectories."""
    nothing = torch.empty(0)
    return MicroBatch(
        packed=idle_sequences(token_id),
        call_lengths_K=nothing.long(),
        behaviour_logprobs_L=nothing,
        versions_L=nothing.long(),
        advantages_L=nothing,
        token_weights_L=nothing,
        places_L=nothing.long(),
    )


def on_device(batch: B, device: torch.device) -> B:
    """The batch with all its tensors on the device; those already there are not copied."""

    def moved(value: Any) -> Any:
        if isinstance(value, PackedSequences):
            return on_device(value, device)
        return value.to(device) if isinstance(value, Tensor) else value

    return replace(batch, **{field.name: moved(getattr(batch, field.name)) for field in fields(batch)})


def _flat(arrays: Sequence[np.ndarray], dtype: type[np.generic]) -> Tensor:
    # Concatenating copies: arrays from a socket are read-only views, which torch refuses to share.
    return torch.from_numpy(np.concatenate(arrays).astype(dtype))
