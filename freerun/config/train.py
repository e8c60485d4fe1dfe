"""How a batch of trajectories becomes new weights."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from freerun.config.engine import Device, Dtype
from freerun.config.section import Section
from freerun.config.values import (
    Coefficient,
    Count,
    CountOrNone,
    Factor,
    GroupCount,
    LearningRate,
    NumProcesses,
    NumThreads,
)


@dataclass(frozen=True)
class TrainConfig(Section, name="train"):
    num_steps: CountOrNone = 100
    """Training steps; each consumes one batch and makes one new version. 0 ends with the model that SFT made."""
    prompts_per_step: GroupCount = 8
    """Groups in a batch; the batch size in trajectories is prompts_per_step x sampling.group_size."""
    num_minibatches: Count = 4
    """Optimizer updates per step."""
    micro_batch_tokens: Count = 2048
    """Capacity of a packed micro-batch; sets the trainer's peak memory."""
    recompute_activations: bool = False
    """Keep only the input of each layer for the backward pass and compute the layer again there (activation
    checkpointing): the same gradients with a fraction of the memory per token, for a third more computation."""
    lr: LearningRate = 2e-5
    """AdamW learning rate, reached after the warm-up."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """constant after the warm-up (the paper); linear falls to 0 towards the last of train.num_steps."""
    warmup_updates: CountOrNone = 0
    """Optimizer updates over which the learning rate rises from 0."""
    weight_decay: Coefficient = 0.05
    """AdamW weight decay, on matrices only."""
    adam_eps: Annotated[float, Meta(ge=1e-20, le=1)] = 1e-5
    """AdamW epsilon."""
    max_grad_norm: Factor = 1.0
    """Gradients are scaled down to this norm."""
    num_ranks: NumProcesses = 1
    """Trainer processes; more than one shard weights, gradients and moments among them (FSDP2)."""
    num_threads: NumThreads = 0
    """Torch threads and cores of each rank; 0 divides the cores evenly among workers and trainer ranks, and lends
    the trainer those of idle rollout workers. Only with a fixed number are synchronous runs bitwise repeatable."""
    device: Device = "auto"
    """Where the trainer computes; auto takes CUDA if the machine has it."""
    dtype: Dtype = "float32"
    """What forward and backward compute in; weights and moments are float32 in any case."""
