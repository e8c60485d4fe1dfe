"""How a batch of trajectories becomes new weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from freerun.config.checks import (
    COEFFICIENT,
    COUNT,
    COUNT_OR_NONE,
    FACTOR,
    GROUPS,
    LEARNING_RATE,
    PROCESSES,
    SHARE_BELOW_ONE,
    THREADS,
    TOKENS,
    Range,
    require_ranges,
)
from freerun.config.engine import Device, Dtype


@dataclass(frozen=True)
class TrainConfig:
    num_steps: int = 100
    """Training steps; each consumes one batch and makes one new version. 0 ends with the warm-started model."""
    prompts_per_step: int = 8
    """Groups in a batch; the batch size in trajectories is prompts_per_step x sampling.group_size."""
    num_minibatches: int = 4
    """Optimizer updates per step."""
    micro_batch_tokens: int = 2048
    """Capacity of a packed micro-batch; sets the trainer's peak memory."""
    lr: float = 2e-5
    """AdamW learning rate, reached after the warm-up."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """constant after the warm-up (the paper); linear falls to 0 towards the last of train.num_steps."""
    warmup_updates: int = 0
    """Optimizer updates over which the learning rate rises from 0."""
    weight_decay: float = 0.05
    """AdamW weight decay, on matrices only."""
    beta1: float = 0.9
    """AdamW first-moment decay."""
    beta2: float = 0.95
    """AdamW second-moment decay."""
    adam_eps: float = 1e-5
    """AdamW epsilon."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    num_ranks: int = 1
    """Trainer processes; more than one shard weights, gradients and moments among them (FSDP2)."""
    num_threads: int = 0
    """Torch threads and cores of each rank; 0 divides the cores evenly among workers and trainer ranks, and lends
    the trainer those of idle rollout workers. Only with a fixed number are synchronous runs bitwise repeatable."""
    device: Device = "auto"
    """Where the trainer computes; auto takes CUDA if the machine has it."""
    dtype: Dtype = "float32"
    """What forward and backward compute in; weights and moments are float32 in any case."""

    def __post_init__(self) -> None:
        require_ranges(
            "train",
            self,
            num_steps=COUNT_OR_NONE,
            prompts_per_step=GROUPS,
            num_minibatches=COUNT,
            micro_batch_tokens=TOKENS,
            lr=LEARNING_RATE,
            warmup_updates=COUNT_OR_NONE,
            weight_decay=COEFFICIENT,
            beta1=SHARE_BELOW_ONE,
            beta2=SHARE_BELOW_ONE,
            adam_eps=Range(1e-20, 1),
            max_grad_norm=FACTOR,
            num_ranks=PROCESSES,
            num_threads=THREADS,
        )
