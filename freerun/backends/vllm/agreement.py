"""Whether a vLLM server computes with the weights that it has read: its logprobs against our own decoder's.

A checksum proves what arrived, not what the kernels use: vLLM keeps packed copies of weights, and with one that a
load forgets (0.32 forgets the tied head's on CPUs) it samples from another model under the right label. So the
first load is proven by a few tokens; at another temperature than 1, so that a joined server whose logprobs are not
those of the distribution it draws from is noticed too.
"""

from __future__ import annotations

import torch

from freerun.backends.vllm.client import VllmClient
from freerun.errors import WeightsError
from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder

NUM_TOKENS = 8
TEMPERATURE = 0.5
TOLERANCE = {"float32": 0.02, "bfloat16": 0.3}
"""Of the mean difference, by what the server computes in; other weights differ by 1 and more."""


def require_agreement(client: VllmClient, model: Decoder, dtype: str) -> None:
    """Sample a few tokens and refuse a server whose logprobs are not those of our decoder."""
    sampling = {"max_tokens": NUM_TOKENS, "temperature": TEMPERATURE, "logprobs": 0, "ignore_eos": True, "seed": 0}
    sampled = client.generate("freerun-agreement", [0], sampling, "agreement")
    with torch.no_grad():
        logits_TV = full_forward_logits(model, [0, *sampled.token_ids])[:-1]
    logprobs_TV = (logits_TV / TEMPERATURE).log_softmax(dim=-1)
    expected_T = logprobs_TV.gather(1, torch.tensor(sampled.token_ids)[:, None])[:, 0]
    actual_T = torch.tensor([entry.logprob for entry in sampled.logprobs.content])
    difference = float((actual_T - expected_T).abs().mean())
    if not difference <= TOLERANCE[dtype]:
        raise WeightsError(
            f"the vLLM server at {client.address} does not compute with the weights it was given: its logprobs "
            f"differ from ours by {difference:.3f} on average; was it started with another model or without "
            "--logprobs-mode processed_logprobs, or is it a vLLM that was not tried (0.32 was)? else set "
            'engine.backend = "native"'
        )
