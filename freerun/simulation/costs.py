"""Cost models: the duration of a decode step, a prefill, a training step, and an update of the weights.

    measured    linear in what was counted, fitted to a run (`calibration.py`)
    roofline    from a GPU's data sheet and three constants

The roofline of a decode step, tensor-parallel over T GPUs, with n sequences that hold K tokens in the cache, W
parameters in products, memory bandwidth B and peak F:

    [ (2 W / T / 0.80 B)^1.2 + (2 W n / T / 0.78 F)^1.2 ]^(1/1.2)      matrix products
    + K cache_bytes / T / (attention B)                                 reading the cache
    + overhead + 15 us layers + 5 us n + 2 layers all_reduce if T > 1   launches, scheduler, sampling

and of a training step over L1 tokens, L2 the sum of squared lengths:

    passes (2 W L1 + attention_flops L2 / 2) / (GPUs F mfu) + fixed

The exponent and the first two factors are fitted to published kernel timings of an H100 and an A100. `overhead`,
`attention` and `mfu` are the constants: `CONSTANTS` was fitted to six published step times of synchronous AReaL
and to nothing else (docs/results/simulation.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from freerun.simulation.hardware import Gpu
from freerun.simulation.shapes import BFLOAT16_BYTES, ModelShape

FORWARD_BACKWARD = 3.0
"""Cost of training a token, in forward passes."""
_SMOOTHNESS = 1.2
_MEMORY_SHARE = 0.80
_FLOPS_SHARE = 0.78
_PREFILL_SHARE = 0.6
_LAYER_SECONDS = 15e-6
_SEQUENCE_SECONDS = 5e-6


class EngineCosts(Protocol):
    """Cost model of one engine."""

    def step_seconds(self, num_sequences: int, num_cached: float) -> float:
        """Seconds of one decode step for sequences that hold `num_cached` tokens together."""
        ...

    def prefill_seconds(self, num_tokens: int, mean_context: float = 0.0) -> float:
        """Seconds that prompt or recomputed tokens add to a step."""
        ...


class TrainerCosts(Protocol):
    """Cost model of the trainer, all ranks together."""

    def step_seconds(self, lengths: Sequence[int]) -> float:
        """Seconds of one step on sequences of these lengths, prompts included."""
        ...


@dataclass(frozen=True)
class WeightCosts:
    """Seconds for a new version to reach the engines."""

    hold_seconds: float = 0.0
    """Time in which the trainer is blocked."""
    transfer_seconds: float = 0.0
    """Time until the engines may load the version; nothing else is blocked."""
    load_seconds: float = 0.0
    """Time in which an engine is blocked."""


@dataclass(frozen=True)
class Constants:
    """Constants that the roofline does not determine."""

    overhead_seconds: float
    """Overhead of a decode step: launches, scheduler, Python."""
    attention: float
    """Share of the memory bandwidth that attention reaches when it reads the cache."""
    mfu: float
    """Share of peak performance that the trainer reaches."""
    fixed_seconds: float = 5.0
    """Fixed time of a training step: data, optimizer, logging."""


CONSTANTS = Constants(overhead_seconds=4.5e-3, attention=0.7, mfu=0.29)
"""Least-squares fit to six synchronous step times: set A of docs/results/simulation.md."""
ROOFLINE_ERROR = "25 % either way is usual, 45 % happens"
"""Error of estimates from the roofline alone: docs/results/simulation.md."""


@dataclass(frozen=True)
class LinearEngine:
    """A measured engine: implements `EngineCosts`."""

    step: float
    sequence: float
    cached_token: float
    prefill_token: float

    def step_seconds(self, num_sequences: int, num_cached: float) -> float:
        return self.step + self.sequence * num_sequences + self.cached_token * num_cached

    def prefill_seconds(self, num_tokens: int, mean_context: float = 0.0) -> float:
        return self.prefill_token * num_tokens


@dataclass(frozen=True)
class LinearTrainer:
    """A measured trainer: implements `TrainerCosts`."""

    step: float
    token: float

    def step_seconds(self, lengths: Sequence[int]) -> float:
        return self.step + self.token * sum(lengths)


@dataclass(frozen=True)
class RooflineEngine:
    """An engine over `num_gpus` GPUs of one node: implements `EngineCosts`."""

    gpu: Gpu
    model: ModelShape
    num_gpus: int = 1
    constants: Constants = CONSTANTS
    memory_share: float = 0.85
    """Share of the GPU's memory available for weights and cache."""

    @cached_property
    def _read_power(self) -> float:
        weight_bytes = BFLOAT16_BYTES * self.model.num_multiplied / self.num_gpus
        return float((weight_bytes / (_MEMORY_SHARE * self.gpu.memory_bandwidth)) ** _SMOOTHNESS)

    @cached_property
    def _sequence_seconds(self) -> float:
        return 2 * self.model.num_multiplied / self.num_gpus / (_FLOPS_SHARE * self.gpu.flops)

    @cached_property
    def _cached_seconds(self) -> float:
        bandwidth = self.num_gpus * self.constants.attention * self.gpu.memory_bandwidth
        return self.model.cache_bytes / bandwidth

    @cached_property
    def _fixed_seconds(self) -> float:
        reduces = 2 * self.model.num_layers * self.gpu.all_reduce_seconds if self.num_gpus > 1 else 0.0
        return self.constants.overhead_seconds + _LAYER_SECONDS * self.model.num_layers + reduces

    def step_seconds(self, num_sequences: int, num_cached: float) -> float:
        power = self._read_power + (self._sequence_seconds * num_sequences) ** _SMOOTHNESS
        products: float = power ** (1 / _SMOOTHNESS)
        rest = self._fixed_seconds + _SEQUENCE_SECONDS * num_sequences
        return products + self._cached_seconds * num_cached + rest

    def prefill_seconds(self, num_tokens: int, mean_context: float = 0.0) -> float:
        operations = 2 * self.model.num_multiplied + self.model.attention_flops * mean_context
        return num_tokens * operations / (self.num_gpus * self.gpu.flops * _PREFILL_SHARE)

    @property
    def cache_tokens(self) -> int:
        """Number of tokens that fit into memory beside the weights; negative if the weights do not fit."""
        room = self.memory_share * self.gpu.memory_bytes * self.num_gpus
        return int((room - BFLOAT16_BYTES * self.model.num_parameters) / self.model.cache_bytes)


@dataclass(frozen=True)
class RooflineTrainer:
    """A trainer over `num_gpus` GPUs: implements `TrainerCosts`."""

    gpu: Gpu
    model: ModelShape
    num_gpus: float
    """May be a fraction in a run that is simulated at a smaller scale."""
    passes: float = FORWARD_BACKWARD + 1
    """Forward and backward, the proximal forward, recomputed activations."""
    constants: Constants = CONSTANTS

    def step_seconds(self, lengths: Sequence[int]) -> float:
        squares = sum(length * length for length in lengths)
        operations = 2 * self.model.num_multiplied * sum(lengths) + self.model.attention_flops * squares / 2
        speed = self.num_gpus * self.gpu.flops * self.constants.mfu
        return self.passes * operations / speed + self.constants.fixed_seconds


def weight_costs(gpu: Gpu, num_bytes: int) -> WeightCosts:
    """Costs of a version of this size on a Ray cluster: sent once to each node, then loaded by each engine."""
    return WeightCosts(
        hold_seconds=num_bytes / gpu.publish_bandwidth,
        transfer_seconds=num_bytes / gpu.network_bandwidth,
        load_seconds=num_bytes / gpu.load_bandwidth,
    )
