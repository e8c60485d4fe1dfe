"""Draws tokens with counter-based random numbers: a token does not depend on the rest of the batch.

The random number of a token is a hash of (seed, prompt ordinal, sample index, call of its session, position). So a
request gets the same tokens in any batch, after a preemption, and on another worker after a crash. Tokens are
drawn by inverting the cumulative distribution, which needs one random number per row, not one per vocabulary
entry (28x cheaper than Gumbel noise at 32 rows of SmolLM2).

Shapes: R rows, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from freerun.errors import WorkerError
from freerun.types import Sampling

_UINT64 = np.uint64
_GOLDEN = _UINT64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1
_BELOW_ONE = 1 - 2.0**-53

BLOCK_ENTRIES = 256
"""Entries of a wide distribution that are searched as one block."""


def _scramble(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    x = (x ^ (x >> _UINT64(30))) * _UINT64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _UINT64(27))) * _UINT64(0x94D049BB133111EB)
    scrambled: np.ndarray = x ^ (x >> _UINT64(31))
    return scrambled


def streams(seed: int, ordinal: int, num_samples: int, *, first: int = 0, call: int = 0) -> np.ndarray:
    """The hash state of each sample of a prompt from index `first` on, before its position is added."""
    # Computed with Python's integers: for a single sample, arrays take ten times as long.
    # Mixed before adding: with seed + ordinal, seeds would be shifted copies of each other.
    prompt = _absorb_number(_scramble_number((seed + int(_GOLDEN)) & _MASK), ordinal)
    states = [_absorb_number(prompt, first + sample) for sample in range(num_samples)]
    if call:  # the first call uses the same numbers as a request without a session
        states = [_absorb_number(state, call) for state in states]
    return np.array(states, dtype=_UINT64)


def _scramble_number(x: int) -> int:
    """`_scramble` for a single 64-bit number."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _absorb_number(state: int, counter: int) -> int:
    """`_absorb` for a single state."""
    return (_scramble_number((state + int(_GOLDEN) + counter) & _MASK) * int(_GOLDEN) + 1) & _MASK


def uniforms(streams_R: np.ndarray, positions_R: Sequence[int]) -> Tensor:
    """A number in [0, 1) for each row, determined only by its stream and position."""
    bits = _scramble(_absorb(streams_R, np.array(positions_R, dtype=np.int64))) >> _UINT64(11)
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)


def _absorb(state: np.ndarray, counter: np.ndarray) -> np.ndarray:
    # Unsigned integer arrays wrap around silently.
    absorbed: np.ndarray = _scramble(state + _GOLDEN + counter.astype(_UINT64)) * _GOLDEN + _UINT64(1)
    return absorbed


def sample(logits_RV: Tensor, samplings: Sequence[Sampling], uniforms_R: Tensor) -> tuple[list[int], list[float]]:
    """A token for each row, and the log-probability with which it was drawn."""
    logits_RV = _scale(logits_RV, samplings)
    # With its largest entry subtracted, a row is exponentiated only once, for both normaliser and distribution.
    logits_RV -= logits_RV.amax(dim=-1, keepdim=True)
    tokens_R1, totals_R1 = _draw(logits_RV.exp(), uniforms_R.to(logits_RV.device)[:, None])
    if not torch.isfinite(totals_R1).all():
        raise WorkerError("the model's logits are not finite; the weights are damaged or training has diverged")
    greedy = [row for row, sampling in enumerate(samplings) if sampling.temperature == 0]
    if greedy:
        tokens_R1[greedy] = logits_RV[greedy].argmax(dim=-1, keepdim=True)
    logprobs_R1 = logits_RV.gather(1, tokens_R1) - totals_R1.log().float()
    if greedy:
        logprobs_R1[greedy] = 0.0
    return tokens_R1[:, 0].tolist(), logprobs_R1[:, 0].tolist()


def cumulative(logits_V: Tensor, sampling: Sampling) -> Tensor:
    """The cumulative probabilities of a row: `sample` takes the entry at which they pass the random number."""
    scaled_1V = _scale(logits_V[None].clone(), [sampling])
    return scaled_1V[0].double().softmax(dim=-1).cumsum(dim=-1)


def _draw(masses_RV: Tensor, uniforms_R1: Tensor) -> tuple[Tensor, Tensor]:
    """The entry of each row at which the cumulative mass passes the uniform share of the total, and the total.

    A cumulative sum is slow, a plain sum fast: in a wide row, first find the block, then the entry.
    """
    num_entries = masses_RV.shape[1]
    if num_entries <= BLOCK_ENTRIES:
        cumulative_RV, entries_R1 = _search(masses_RV, uniforms_R1)
        return entries_R1, cumulative_RV[:, -1:]
    num_blocks = num_entries // BLOCK_ENTRIES
    whole_RB, rest_R = masses_RV.split([num_blocks * BLOCK_ENTRIES, num_entries % BLOCK_ENTRIES], dim=1)
    sums_RB = whole_RB.unflatten(1, (num_blocks, BLOCK_ENTRIES)).sum(dim=-1)
    sums_RB = torch.cat((sums_RB, rest_R.sum(dim=1, keepdim=True)), dim=1)
    cumulative_RB, blocks_R1 = _search(sums_RB, uniforms_R1)
    totals_R1 = cumulative_RB[:, -1:]
    excess_R1 = cumulative_RB.gather(1, blocks_R1) - uniforms_R1 * totals_R1
    shares_R1 = (1 - excess_R1 / sums_RB.gather(1, blocks_R1)).clamp_(0, _BELOW_ONE)
    # The last block is narrower; entries read beyond its end have no mass.
    places_RE = blocks_R1 * BLOCK_ENTRIES + torch.arange(BLOCK_ENTRIES, device=masses_RV.device)
    is_beyond_RE = places_RE >= num_entries
    block_RE = masses_RV.gather(1, places_RE.masked_fill(is_beyond_RE, 0)).masked_fill_(is_beyond_RE, 0)
    _, entries_R1 = _search(block_RE, shares_R1)
    return (blocks_R1 * BLOCK_ENTRIES + entries_R1).clamp_(max=num_entries - 1), totals_R1


def _search(masses_RE: Tensor, uniforms_R1: Tensor) -> tuple[Tensor, Tensor]:
    """The cumulative sum of each row, and the entry at which it passes the uniform share of its total."""
    cumulative_RE = masses_RE.cumsum(dim=-1, dtype=torch.float64)
    # Scaled by the last entry, so that rounding in the sum never leaves a gap at the end.
    targets_R1 = uniforms_R1 * cumulative_RE[:, -1:]
    entries_R1 = torch.searchsorted(cumulative_RE, targets_R1, right=True)
    return cumulative_RE, entries_R1.clamp_(max=masses_RE.shape[1] - 1)


def _scale(logits_RV: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """The logits after temperature, top-k and top-p; in float32 for any model dtype, as in the trainer."""
    logits_RV = logits_RV.float()
    # Temperature 0 selects the most likely token: a point mass, handled after the division.
    temperatures = [sampling.temperature or 1.0 for sampling in samplings]
    if any(temperature != 1 for temperature in temperatures):
        logits_RV = logits_RV / torch.tensor(temperatures, device=logits_RV.device)[:, None]
    return _restrict(logits_RV, samplings)


def _restrict(logits_RV: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Remove the tokens that top-k and top-p exclude; tokens tied with the last kept one are kept."""
    for row, sampling in enumerate(samplings):
        if 0 < sampling.top_k < logits_RV.shape[1]:
            threshold = logits_RV[row].topk(sampling.top_k).values[-1]
            logits_RV[row].masked_fill_(logits_RV[row] < threshold, -torch.inf)
        if sampling.top_p < 1:
            ordered, order = logits_RV[row].sort(descending=True)
            mass_before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
            kept = ordered.masked_fill(mass_before >= sampling.top_p, -torch.inf)
            logits_RV[row].scatter_(0, order, kept)
    return logits_RV
