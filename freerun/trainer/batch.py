"""From trajectories to the flat tensors of one micro-batch: packed, without padding, each prompt once.

    prompt      p0 p1 p2
    completions          a0 a1 a2        the decoder reads   p0 p1 p2 a0 a1 b0
                         b0 b1           positions            0  1  2  3  4  3
                                         predictors           2  3  4 | 2  5   (where the hidden states are)
                                         targets             a0 a1 a2 |b0 b1

The hidden state of a token predicts the next one, so logits are computed at the predictors only, and the last
token of a sequence is never read: its hidden state is not needed. Adjacent samples of one prompt share it: its
last hidden state predicts the first token of each. Which tokens are trained on follows from lengths alone, because
a policy can sample the pad or end-of-sequence id.

Shapes: T packed tokens read by the decoder, L loss tokens (all completion tokens, in the same order), N
trajectories.
"""

# ruff: noqa: N815 - the fields are tensors, and tensors carry their shape in the name

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from freerun.model.attention import Family, packed_positions
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


class Rated(NamedTuple):
    """A trajectory, its advantage and its weight in the step."""

    trajectory: Trajectory
    advantage: float
    """0 if a critic gives each token its own."""
    token_weight: float
    """Of each of its completion tokens in the step's loss (`aggregation.py`)."""


@dataclass(frozen=True)
class MicroBatch:
    """Packed trajectories and, for each completion token, everything a loss needs besides the forward pass.

    Fields that default to None are filled in at the start of the step if the objective needs them
    (`preparation.py`).
    """

    packed: PackedSequences
    lengths_N: Tensor
    """Completion tokens of each trajectory: how L divides."""
    rewards_N: Tensor
    behaviour_logprobs_L: Tensor
    versions_L: Tensor
    advantages_L: Tensor
    token_weights_L: Tensor
    proximal_logprobs_L: Tensor | None = None
    """Also None where the forward of the training pass is itself the proximal one."""
    reference_logprobs_L: Tensor | None = None
    values_L: Tensor | None = None
    """The critic's, at the start of the step."""
    returns_L: Tensor | None = None
    """What the critic is trained towards."""
    is_kept_L: Tensor | None = None
    """Whether M2PO trains on the token."""


def family_of(prompt_ids: Ints, completions: Sequence[Ints]) -> Family:
    """What the decoder reads of a prompt and its completions: all but the last token of each sequence."""
    if len(completions) == 1:
        return Family(len(prompt_ids) + len(completions[0]) - 1)
    return Family(len(prompt_ids), tuple(len(completion) - 1 for completion in completions))


def pack_sequences(sequences: Sequence[tuple[Ints, Ints]]) -> PackedSequences:
    """Lay (prompt_ids, completion_ids) pairs end to end; equal prompts that are neighbours are laid once."""
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
    """One micro-batch of whole trajectories, each with its advantage on every token of its completion."""
    trajectories = [r.trajectory for r in rated]
    completions = [t.completion for t in trajectories]
    lengths = [len(c.token_ids) for c in completions]
    return MicroBatch(
        packed=pack_sequences([(t.prompt.token_ids, t.completion.token_ids) for t in trajectories]),
        lengths_N=torch.tensor(lengths),
        rewards_N=torch.tensor([t.reward.value for t in trajectories], dtype=torch.float64),
        behaviour_logprobs_L=_flat([c.logprobs for c in completions], np.float32),
        versions_L=_flat([c.versions for c in completions], np.int64),
        advantages_L=_spread([r.advantage for r in rated], lengths),
        token_weights_L=_spread([r.token_weight for r in rated], lengths),
    )


def idle_sequences(token_id: int) -> PackedSequences:
    """Nothing to predict: what a rank reads in a round in which only other ranks have a micro-batch.

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
        lengths_N=nothing.long(),
        rewards_N=nothing.double(),
        behaviour_logprobs_L=nothing,
        versions_L=nothing.long(),
        advantages_L=nothing,
        token_weights_L=nothing,
    )


def on_device(batch: B, device: torch.device) -> B:
    """The batch with all its tensors on the device; those already there are not copied."""

    def moved(value: Any) -> Any:
        if isinstance(value, PackedSequences):
            return on_device(value, device)
        return value.to(device) if isinstance(value, Tensor) else value

    return replace(batch, **{field.name: moved(getattr(batch, field.name)) for field in fields(batch)})


def check_trajectory(trajectory: Trajectory, *, version: int) -> None:
    """Refuse a trajectory that cannot be trained on at `version`: it is a bug upstream, not bad data."""
    completion, name = trajectory.completion, f"trajectory {trajectory.prompt.ordinal}/{trajectory.sample}"
    num_tokens = len(completion.token_ids)
    if num_tokens == 0 or len(trajectory.prompt.token_ids) == 0:
        raise ValueError(f"{name} has an empty prompt or completion; there is nothing to predict")
    num_versions = sum(span.num_tokens for span in completion.spans)
    if not num_tokens == len(completion.logprobs) == num_versions:
        raise ValueError(
            f"{name} has {num_tokens} tokens, {len(completion.logprobs)} behaviour logprobs and spans over "
            f"{num_versions} tokens; they must be as many"
        )
    newest = int(completion.versions.max())
    if newest > version:
        raise ValueError(
            f"{name} has tokens of version {newest}, but the trainer is at version {version}; "
            "the trainer was restored to an older version than the generators"
        )


def _spread(values: Sequence[float], lengths: Sequence[int]) -> Tensor:
    """Each trajectory's number on every token of its completion."""
    return _flat([np.repeat(values, lengths)], np.float32)


def _flat(arrays: Sequence[Ints], dtype: type[np.generic]) -> Tensor:
    # Concatenating copies: arrays from a socket are read-only views, which torch refuses to share.
    return torch.from_numpy(np.concatenate(arrays).astype(dtype))
