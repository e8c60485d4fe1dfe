"""AReaL's side of training: its FSDPEngine on the CPU, one process.

    areal_engine.py MODEL        MODEL: a Hugging Face directory

One sequence per micro-batch: with SDPA, its attention on a CPU, sequences that are packed together attend to each
other.
"""

import logging
import os
import sys
import time
from typing import Any

import torch
from asked import answer

os.environ |= {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29555",
}

from areal.api import FinetuneSpec
from areal.api.cli_args import MicroBatchSpec, OptimizerConfig, TrainEngineConfig
from areal.engine.fsdp_engine import FSDPEngine


def make_engine(directory: str) -> FSDPEngine:
    config = TrainEngineConfig(
        experiment_name="bench",
        trial_name="bench",
        backend="fsdp:d1",
        path=directory,
        attn_impl="sdpa",
        dtype="float32",
        disable_dropout=True,
        mb_spec=MicroBatchSpec(n_mbs=1),
        optimizer=OptimizerConfig(
            type="adam",
            lr=1e-12,
            weight_decay=0.05,
            beta1=0.9,
            beta2=0.95,
            eps=1e-5,
            lr_scheduler_type="constant",
            gradient_clipping=1.0,
            warmup_steps_proportion=0.0,
        ),
    )
    engine = FSDPEngine(config)
    engine.create_process_group()
    engine.initialize(None, FinetuneSpec(total_train_epochs=1, dataset_size=1024, train_batch_size=1))
    engine.train()
    engine.model.register_forward_pre_hook(_without_mask, with_kwargs=True)
    return engine


def _without_mask(_: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """AReaL passes None per kind of attention, by name; transformers' Llama expects a plain None."""
    return arguments, named | {"attention_mask": None}


def as_input(prompt: list[int], completion: list[int], advantage: float, behaviour: float) -> dict[str, Any]:
    """One sequence; AReaL stores a logprob at the position before its token."""
    num_tokens = len(prompt) + len(completion)
    is_trained = torch.zeros(1, num_tokens, dtype=torch.bool)
    is_trained[0, len(prompt) - 1 : -1] = True
    return {
        "input_ids": torch.tensor([prompt + completion]),
        "attention_mask": torch.ones(1, num_tokens, dtype=torch.bool),
        "loss_mask": is_trained,
        "advantages": torch.full((1, num_tokens), advantage),
        "behaviour": torch.full((1, num_tokens), behaviour),
    }


def mean_loss(logprobs: torch.Tensor, _entropy: torch.Tensor, batch: dict[str, Any], **_: Any) -> torch.Tensor:
    """Mean over the trained tokens of a micro-batch; the engine weighs it by their number."""
    is_trained: torch.Tensor = batch["loss_mask"]
    gains = torch.exp(logprobs - batch["behaviour"]) * batch["advantages"]
    return -torch.where(is_trained, gains, 0.0).sum() / is_trained.sum()


def work(*, num_threads: int, groups: list[dict[str, Any]]) -> dict[str, float]:
    """One step."""
    torch.set_num_threads(num_threads)
    sequences = [
        as_input(group["prompt"], completion, advantage, group["behaviour_logprob"])
        for group in groups
        for completion, advantage in zip(group["completions"], group["advantages"], strict=True)
    ]
    engine.config.mb_spec.n_mbs = len(sequences)
    started = time.perf_counter()
    stats = engine.train_batch(sequences, mean_loss, lambda batch: batch["loss_mask"].count_nonzero())
    return {
        "seconds": time.perf_counter() - started,
        "grad_norm": float(stats["grad_norm"]),
    }


engine = make_engine(sys.argv[1])
logging.disable(logging.INFO)
answer(work)
