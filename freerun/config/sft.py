"""Supervised fine-tuning: what `freerun sft` is told beside the model, the rows and where to write."""

from __future__ import annotations

from dataclasses import dataclass

from freerun.config.checks import (
    COEFFICIENT,
    COUNT,
    COUNT_OR_NONE,
    FACTOR,
    LEARNING_RATE,
    SHARE_BELOW_ONE,
    THREADS,
    TOKENS,
    require,
)


@dataclass(frozen=True)
class SftConfig:
    template: str = ""
    """Prompt text; {field} is replaced by the row's field, \\n is a line break. Empty: rows are chats,
    {"messages": [...]}."""
    completion_field: str = "completion"
    """Field of the row that continues the prompt; it is what is trained, with the end token after it."""
    num_epochs: int = 1
    """Times each row is trained on."""
    num_steps: int = 0
    """Steps of batch_size rows; 0 takes as many as num_epochs needs."""
    batch_size: int = 16
    """Rows per optimizer update."""
    lr: float = 2e-5
    """Peak learning rate; it falls to a tenth along a cosine. An adapter bears about ten times as much."""
    warmup_steps: int = 10
    """Steps over which the learning rate rises to its peak."""
    weight_decay: float = 0.0
    """AdamW weight decay, on matrices only."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    max_tokens: int = 1024
    """Longer rows are left out, counted and reported; none is ever cut."""
    micro_batch_tokens: int = 2048
    """Capacity of a packed micro-batch; sets the peak memory."""
    held_out_fraction: float = 0.05
    """Share of the rows kept out of training, to measure the loss on; 0 measures none."""
    eval_every_steps: int = 50
    """Held-out loss is measured after this many steps, and always before the first and after the last."""
    save_every_steps: int = 200
    """The model and where it stands are saved after this many steps, and always at the end and on Ctrl-C."""
    seed: int = 0
    """Seeds the order of the rows and a new adapter."""
    num_threads: int = 0
    """Torch threads; 0 takes every core."""

    def __post_init__(self) -> None:
        ranges = {
            "num_epochs": COUNT,
            "num_steps": COUNT_OR_NONE,
            "batch_size": COUNT,
            "lr": LEARNING_RATE,
            "warmup_steps": COUNT_OR_NONE,
            "weight_decay": COEFFICIENT,
            "max_grad_norm": FACTOR,
            "max_tokens": TOKENS,
            "micro_batch_tokens": TOKENS,
            "held_out_fraction": SHARE_BELOW_ONE,
            "eval_every_steps": COUNT,
            "save_every_steps": COUNT,
            "num_threads": THREADS,
        }
        for name, allowed in ranges.items():
            value = getattr(self, name)
            require(value in allowed, f"{_option(name)} {value} must lie {allowed}")
        require(0 <= self.seed < 2**63, f"--seed {self.seed} must lie between 0 and 2^63 - 1")


def _option(name: str) -> str:
    """As the field is written on the command line."""
    return "--" + name.replace("_", "-")
