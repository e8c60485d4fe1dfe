"""What an engine is compared with: the same sequence computed whole, under one version, by a plain forward."""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from freerun.engine.engine import Engine
from freerun.engine.pinned import PinnableEngine
from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder
from freerun.types import Completion, Request

MAX_STEPS = 500


@torch.no_grad()
def logprobs_of_full_forward(
    model: Decoder, weights: Mapping[str, Tensor], request: Request, completion: Completion
) -> np.ndarray:
    """Behaviour logprobs of every token if the whole sequence had been computed under these weights."""
    model.load_state_dict(weights, strict=False)
    tokens = request.prompt_token_ids.tolist() + completion.token_ids.tolist()
    logits = full_forward_logits(model, tokens)[len(request.prompt_token_ids) - 1 : -1].float()
    logprobs = torch.log_softmax(logits / request.sampling.temperature, dim=-1)
    return logprobs.gather(1, torch.tensor(completion.token_ids, dtype=torch.long)[:, None])[:, 0].numpy()


class GrowingAttention:
    """Keeps every key and value it is shown, under whichever weights made them."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        if layer in self.kept:
            k_TKD = torch.cat([self.kept[layer][0], k_TKD])
            v_TKD = torch.cat([self.kept[layer][1], v_TKD])
        self.kept[layer] = (k_TKD, v_TKD)
        total, new = len(k_TKD), len(q_THD)
        mask = torch.arange(total) <= torch.arange(total - new, total)[:, None]
        q, k, v = (x.transpose(0, 1)[None] for x in (q_THD, k_TKD, v_TKD))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)


@torch.no_grad()
def logprobs_with_kept_cache(
    model: Decoder,
    weights: Mapping[int, Mapping[str, Tensor]],
    turns: Iterable[tuple[Request, Completion]],
) -> list[float]:
    """Token by token, each position computed once, under the version that sampled the token after it.

    `turns` are those of one session; each prompt continues the turn before.
    """
    attention, num_computed = GrowingAttention(), 0
    expected = []
    for request, completion in turns:
        tokens = request.prompt_token_ids.tolist()
        for token, version in zip(completion.token_ids.tolist(), completion.versions.tolist(), strict=True):
            model.load_state_dict(weights[version])
            positions = torch.arange(num_computed, len(tokens))
            hidden = model(torch.tensor(tokens[num_computed:]), positions, attention)
            expected.append(torch.log_softmax(model.logits(hidden[-1:])[0], dim=-1)[token].item())
            num_computed = len(tokens)
            tokens.append(token)
    return expected


def finish(
    engine: Engine | PinnableEngine,
    request: Request,
    loads: Mapping[int, int],
    weights: Mapping[int, Mapping[str, Tensor]],
) -> list[Completion]:
    """All completions of a request; `loads` maps a step number to the version of `weights` loaded before it."""
    engine.submit(request)
    completions: list[Completion] = []
    for step in range(MAX_STEPS):
        if step in loads:
            engine.load(loads[step], weights[loads[step]])
        completions += [completion for _, finished in engine.step() for completion in finished]
        if not engine.has_work:
            return completions
    raise AssertionError("the engine makes no progress")
