"""Our side of training: `PolicyTrainer` on one model, one step per request.

trainer.py MODEL        MODEL: a Hugging Face directory
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from asked import answer

from freerun.config.objective import ObjectiveConfig
from freerun.config.train import TrainConfig
from freerun.model.checkpoint import load_model
from freerun.trainer.allocator import keep_freed_memory
from freerun.trainer.batch import Rated, pack_trajectories
from freerun.trainer.preparation import Minibatch
from freerun.trainer.trainer import PolicyTrainer
from freerun.types import Completion, Group, Prompt, Reward, Span, Trajectory


class FixedCountTrainer(PolicyTrainer):
    """Can divide a minibatch, in order, into a fixed count of micro-batches of equally many sequences."""

    num_micro_batches = 0
    """0 packs by tokens, as `PolicyTrainer` does."""

    def _form_micro_batches(self, rated: Sequence[Rated]) -> Minibatch:
        if not self.num_micro_batches:
            return super()._form_micro_batches(rated)
        size = -(-len(rated) // self.num_micro_batches)
        return [pack_trajectories(rated[begin : begin + size]) for begin in range(0, len(rated), size)]


def trajectory(ordinal: int, sample: int, group: dict[str, Any]) -> Trajectory:
    token_ids = np.array(group["completions"][sample], dtype=np.int32)
    return Trajectory(
        prompt=Prompt(
            ordinal=ordinal, key="", text="", answer="", token_ids=np.array(group["prompt"], dtype=np.int32)
        ),
        sample=sample,
        completion=Completion(
            token_ids=token_ids,
            logprobs=np.full(len(token_ids), group["behaviour_logprob"], dtype=np.float32),
            spans=(Span(0, len(token_ids)),),
            finish_reason="stop",
            text="",
        ),
        reward=Reward(value=group["rewards"][sample], is_correct=True),
    )


def as_group(ordinal: int, group: dict[str, Any]) -> Group:
    members = tuple(trajectory(ordinal, sample, group) for sample in range(len(group["completions"])))
    return Group(ordinal=ordinal, start_version=0, trajectories=members)


def trainer_of(micro_batch_tokens: int) -> FixedCountTrainer:
    config = TrainConfig(num_minibatches=1, micro_batch_tokens=micro_batch_tokens, lr=1e-12)
    return FixedCountTrainer(model, config, ObjectiveConfig(), temperature=1.0, max_completion_tokens=512)


def work(
    *, num_threads: int, groups: list[dict[str, Any]], micro_batch_tokens: int, num_micro_batches: int = 0
) -> dict[str, float]:
    """One step, packed to `micro_batch_tokens`, or in the fixed count of micro-batches that is given."""
    torch.set_num_threads(num_threads)
    if micro_batch_tokens not in trainers:
        trainers.clear()  # the moments of one optimizer at a time
        trainers[micro_batch_tokens] = trainer_of(micro_batch_tokens)
    trainer = trainers[micro_batch_tokens]
    trainer.num_micro_batches = num_micro_batches
    batch = [as_group(ordinal, group) for ordinal, group in enumerate(groups)]
    started = time.perf_counter()
    result = trainer.step(batch)
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "grad_norm": result.metrics["grad_norm"],
        "num_computed_tokens": result.metrics["train_tokens_per_second"] * seconds,
    }


keep_freed_memory()  # as the worker process of a trainer does
model = load_model(Path(sys.argv[1]))
trainers: dict[int, FixedCountTrainer] = {}
answer(work)
