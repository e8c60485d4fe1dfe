"""Translates freerun's requests into calls for single samples, and their results into completions.

vLLM draws tokens with its own random numbers, seeded per sample: samples of a group differ, and a request that
is sent again gets the same numbers. The numbers differ from the embedded engine's.
"""

from typing import Any

import numpy as np
import xxhash

from freerun.backends.vllm.client import UNLABELLED, Sampled
from freerun.data.tokenizer import Tokenizer
from freerun.errors import WorkerError
from freerun.types import Completion, FinishReason, Request, Span

_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
IMPOSSIBLE_LOGPROB = -9000.0
"""vLLM sends -9999 for a logprob that is not a number or minus infinity."""


def sample_seed(run_seed: int, ordinal: int, sample: int, call: int = 0) -> int:
    """A seed of 63 bits for each sample and call of its session, so that no two in a run collide."""
    # The first call has the same seed as a request without a session.
    counters = f"{run_seed} {ordinal} {sample}{f' {call}' if call else ''}"
    return int(xxhash.xxh3_64_intdigest(counters.encode())) >> 1


def sampling_parameters(request: Request, index: int, run_seed: int) -> dict[str, Any]:
    """The sampling settings and end conditions of one sample, under vLLM's names."""
    sampling = request.sampling
    return {
        "max_tokens": sampling.max_completion_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": sample_seed(run_seed, request.ordinal, request.sample + index, request.call),
        "logprobs": 0,  # only the sampled token's
        # The request contains the end tokens; vLLM must not add those of the model's files.
        "ignore_eos": True,
        "stop_token_ids": list(sampling.stop_token_ids),
        "stop": list(sampling.stop_strings),
        # As in the embedded engine: a stop string may contain special tokens.
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }


def to_completion(sampled: Sampled, request: Request, text: Tokenizer) -> Completion:
    """The completion of a finished sample; raises if a token lacks its version or logprob."""
    if sampled.finish_reason not in _FINISH_REASONS:
        raise WorkerError(f'vLLM ended a sample of prompt {request.ordinal} with "{sampled.finish_reason}"')
    token_ids = np.array(sampled.token_ids, dtype=np.int32)
    logprobs = np.array([entry.logprob for entry in sampled.logprobs.content], dtype=np.float32)
    spans = tuple(Span(version_number(s.version), s.end - s.start) for s in sampled.weight_versions or ())
    if not len(token_ids) == len(logprobs) == sum(span.num_tokens for span in spans):
        raise WorkerError(
            f"vLLM returned {len(token_ids)} tokens, {len(logprobs)} logprobs and versions of "
            f"{sum(span.num_tokens for span in spans)} for prompt {request.ordinal}"
        )
    if (logprobs < IMPOSSIBLE_LOGPROB).any():
        raise WorkerError("the model's logits are not finite; the weights are damaged or training has diverged")
    if request.sampling.temperature == 0:
        logprobs = np.zeros_like(logprobs)  # the most likely token has probability 1
    return Completion(
        token_ids=token_ids,
        logprobs=logprobs,
        spans=spans,
        finish_reason=_FINISH_REASONS[sampled.finish_reason],
        text=text.decode(token_ids),
    )


def version_number(label: str) -> int:
    """The version in vLLM's label; weights from the model's directory are version 0."""
    return 0 if label == UNLABELLED else int(label)
