"""transformers: `generate` on padded batches, or its continuous batching; completions of forced lengths.

    generate.py MODEL

Padded, a batch runs until its longest completion is done. Only the requested tokens are counted.
"""

import os
import sys
import time
from typing import Any

import torch
from asked import answer
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

Prompts = list[list[int]]
NO_END = -1
"""A token that is never sampled: only the length ends a completion."""


class Transformers:
    def __init__(self, directory: str) -> None:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="sdpa"
        )
        self._model.eval()

    def generate(
        self, groups: list[dict[str, Any]], batch_size: int = 0, page_tokens: int = 0, seed: int = 0
    ) -> dict[str, Any]:
        """In padded batches of `batch_size`; 0 is continuous batching, with pages of `page_tokens`."""
        prompts = [group["prompt"] for group in groups for _ in group["lengths"]]
        lengths = [length for group in groups for length in group["lengths"]]
        torch.manual_seed(seed)
        if batch_size:
            start = time.perf_counter()
            for first in range(0, len(prompts), batch_size):
                chosen = slice(first, first + batch_size)
                self._padded(prompts[chosen], max(lengths[chosen]))
            seconds = time.perf_counter() - start
        else:
            seconds = self._continuous(prompts, lengths, page_tokens, seed)
        return {"tokens": sum(lengths), "seconds": seconds}

    def _padded(self, prompts: Prompts, num_tokens: int) -> None:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        output = self._model.generate(ids, attention_mask=mask, generation_config=_sampling(num_tokens))
        assert output.shape[1] == longest + num_tokens

    def _continuous(self, prompts: Prompts, lengths: list[int], page_tokens: int, seed: int) -> float:
        """Seconds from the first request to the last result, without starting and stopping the manager."""
        longest = max(len(prompt) + length for prompt, length in zip(prompts, lengths, strict=True))
        config = ContinuousBatchingConfig(
            page_size=page_tokens,
            num_blocks=len(prompts) * (longest // page_tokens + 1),
            max_batch_tokens=512,
            max_requests_per_batch=len(prompts),
            seed=seed,
        )
        with self._model.continuous_batching_context_manager(
            generation_config=_sampling(max(lengths)), continuous_batching_config=config
        ) as manager:
            start = time.perf_counter()
            for prompt, length in zip(prompts, lengths, strict=True):
                manager.add_request(prompt, max_new_tokens=length, eos_token_id=NO_END)
            num_left = len(prompts)
            while num_left:
                result = manager.get_result(timeout=60)
                if result is None or result.error is not None:
                    raise SystemExit(f"continuous batching failed: {result and result.error}")
                num_left -= result.is_finished()
            return time.perf_counter() - start


def _sampling(num_tokens: int) -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=num_tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=NO_END,
        pad_token_id=0,
    )


if __name__ == "__main__":
    answer(Transformers(sys.argv[1]).generate)
