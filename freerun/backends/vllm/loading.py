"""Loads new weights into a running vLLM server: pause between two steps, confirm, label, resume, verify.

A checksum proves what arrived, not what the kernels use. vLLM keeps packed copies of weights, and 0.32 does not
update the tied head's copy on CPUs at a load; it would sample from another model under the new label. So the
first load is verified with a few tokens, whose logprobs must agree with our decoder's. They are drawn at a
temperature other than 1, which also detects a joined server whose logprobs are not those of the distribution it
draws from.
"""

import dataclasses

import torch

from freerun.backends.vllm.client import VllmClient
from freerun.backends.vllm.weights import ReadableWeights
from freerun.errors import WeightsError
from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder

NUM_TOKENS = 8
TEMPERATURE = 0.5
TOLERANCE = {"float32": 0.02, "bfloat16": 0.3}
"""Limit on the mean difference of logprobs, by the server's dtype; other weights differ by 1 and more."""


def swap_weights(client: VllmClient, weights: ReadableWeights, *, keeps_cache: bool) -> None:
    """Pause the server, have it read the weights, verify that it did, and resume."""
    label = str(weights.version)
    client.pause(keeps_cache=keeps_cache)
    for read in client.read_weights(**dataclasses.asdict(weights)):
        if read.missing:
            raise WeightsError(
                f"the vLLM server at {client.address} has a model with {read.missing}, which the weights of this "
                "run do not have; start it with the run's model"
            )
        if (read.version, read.checksum) != (weights.version, weights.checksum):
            raise WeightsError(
                f"weights of version {label} arrived damaged in the vLLM server: checksum {read.checksum}, "
                f"published was {weights.checksum}"
            )
    client.set_version(label)
    if (held := client.version()) != label:
        raise WeightsError(f'the vLLM server says that it holds version "{held}" after loading {label}')
    client.resume()


def require_agreement(client: VllmClient, model: Decoder, dtype: str) -> None:
    """Sample a few tokens and refuse a server whose logprobs are not those of our decoder."""
    sampling = {"max_tokens": NUM_TOKENS, "temperature": TEMPERATURE, "logprobs": 0, "ignore_eos": True, "seed": 0}
    sampled = client.generate("freerun-agreement", [0], sampling, "agreement")
    with torch.no_grad():
        logits_TV = full_forward_logits(model, [0, *sampled.token_ids])[:-1]
    logprobs_TV = (logits_TV.float() / TEMPERATURE).log_softmax(dim=-1)
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
