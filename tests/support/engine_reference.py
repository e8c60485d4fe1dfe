"""What an engine is compared with: the same sequence computed whole, under one version, by a plain forward."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

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
