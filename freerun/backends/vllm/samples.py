"""Between freerun's requests and vLLM's: one call for each sample, and a completion from what comes back.

Tokens are drawn with random numbers of vLLM's own, seeded for each sample: samples of a group differ, and a
request that is sent again draws from the same numbers. They are other numbers than the embedded engine's.
"""

from __future__ import annotations

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


def sample_seed(run_seed: int, ordinal: int, sample: int) -> int:
    """A number that is the sample's own; 63 bits, so that no two of a run meet."""
    return int(xxhash.xxh3_64_intdigest(f"{run_seed} {ordinal} {sample}".encode())) >> 1


def sampling_parameters(request: Request, sample: int, run_seed: int) -> dict[str, Any]:
    """vLLM's names for how this sample is drawn and where it ends."""
    sampling = request.sampling
    return {
        "max_tokens": sampling.max_completion_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": sample_seed(run_seed, request.ordinal, sample),
        "logprobs": 0,  # of the sampled token alone
        # The end tokens are in the request; those that vLLM would add from the model's files are not ours to obey.
        "ignore_eos": True,
        "stop_token_ids": list(sampling.stop_token_ids),
        "stop": list(sampling.stop_strings),
        # As the tokenizer of the embedded engine shows them: a stop string may contain them.
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }


def to_completion(sampled: Sampled, request: Request, text: Tokenizer) -> Completion:
    """The completion of a sample that has ended; refuses one without a version or a logprob for every token."""
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
        logprobs = np.zeros_like(logprobs)  # the likeliest token is drawn with certainty
    return Completion(
        token_ids=token_ids,
        logprobs=logprobs,
        spans=spans,
        finish_reason=_FINISH_REASONS[sampled.finish_reason],
        text=text.decode(token_ids),
    )


def version_number(label: str) -> int:
    """The version that a label of vLLM's names; weights from the model's directory are version 0."""
    return 0 if label == UNLABELLED else int(label)
