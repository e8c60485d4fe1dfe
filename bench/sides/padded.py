"""The usual way to train: a Hugging Face model on padded micro-batches with the same number of sequences.

    padded.py MODEL        MODEL: a Hugging Face directory

Right padding, attention masks from lengths, logits of completion positions only (`logits_to_keep`, as TRL does),
`F.cross_entropy` for the logprobs, gradients clipped by norm, fused AdamW, float32.
"""

import sys
import time
from typing import Any

import torch
from asked import answer
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

Sequence = tuple[list[int], list[int], float, float]
"""Prompt, completion, advantage, behaviour logprob of its tokens."""


def sequences_of(groups: list[dict[str, Any]]) -> list[Sequence]:
    return [
        (group["prompt"], completion, advantage, group["behaviour_logprob"])
        for group in groups
        for completion, advantage in zip(group["completions"], group["advantages"], strict=True)
    ]


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Token ids and where they are real."""
    size = max(map(len, rows))
    ids = torch.tensor([row + [0] * (size - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (size - len(row)) for row in rows])
    return ids, mask


def backward(sequences: list[Sequence], num_loss_tokens: int) -> None:
    """The gradients of one micro-batch; prompts are equally long here."""
    ids, mask = padded([prompt + completion for prompt, completion, *_ in sequences])
    targets, is_trained = padded([completion for _, completion, *_ in sequences])
    # One position more than completion tokens: the last prompt token predicts the first of them.
    logits = model(ids, attention_mask=mask, use_cache=False, logits_to_keep=targets.shape[1] + 1).logits[:, :-1]
    logprobs = -F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    advantages = torch.tensor([advantage for *_, advantage, _ in sequences])[:, None]
    behaviour = torch.tensor([logprob for *_, logprob in sequences])[:, None]
    gains = torch.exp(logprobs - behaviour) * advantages
    (-(gains * is_trained).sum() / num_loss_tokens).backward()


def work(
    *, num_threads: int, groups: list[dict[str, Any]], micro_batch_size: int, is_sorted: bool
) -> dict[str, float]:
    """One step; `is_sorted` puts sequences of like length into one micro-batch."""
    torch.set_num_threads(num_threads)
    started = time.perf_counter()
    sequences = sequences_of(groups)
    if is_sorted:
        sequences.sort(key=lambda sequence: len(sequence[1]))
    num_loss_tokens = sum(len(completion) for _, completion, *_ in sequences)
    for begin in range(0, len(sequences), micro_batch_size):
        backward(sequences[begin : begin + micro_batch_size], num_loss_tokens)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {"seconds": time.perf_counter() - started, "grad_norm": float(norm)}


model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="sdpa")
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-12, betas=(0.9, 0.95), eps=1e-5, fused=True)
answer(work)
