"""A real engine that says what a test wrote: only its dice are loaded.

    scripted   the random numbers: for each token the one with which the sampler draws what the script says
    real       everything else: weights, forward passes, caches and parking, the sampler, its logprobs

The script is cut into tokens as no tokenizer would: ids that are made from text again cannot be right by chance.
"""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from freerun.chat.session import SampleRequest
from freerun.data.tokenizer import Tokenizer
from freerun.engine import sampler
from freerun.engine.engine import Engine
from freerun.types import Completion, Request, Sampling

MAX_PIECE_CHARACTERS = 3
TEMPERATURE = 0.7


class LoadedDice:
    """In place of `sampler.sample`, for a batch of one."""

    def __init__(self) -> None:
        self.wanted: list[int] = []

    def __call__(
        self, logits_RV: Tensor, samplings: Sequence[Sampling], uniforms_R: Tensor
    ) -> tuple[list[int], list[float]]:
        [sampling] = samplings
        wanted = self.wanted.pop(0)
        masses_V = torch.softmax(logits_RV[0].double() / sampling.temperature, dim=-1)
        uniform = masses_V[:wanted].sum() + masses_V[wanted] / 2
        drawn, logprobs = sampler.sample(logits_RV, samplings, uniform[None])
        assert drawn == [wanted], "the sampler draws by inverting the cumulative distribution"
        return drawn, logprobs


class EnginePolicy:
    """Samples for one session on an engine whose dice are loaded; it satisfies `Sample`."""

    def __init__(
        self, engine: Engine, dice: LoadedDice, tokenizer: Tokenizer, *, lines: Sequence[str], session: int
    ) -> None:
        self.asked: list[SampleRequest] = []
        self.completions: list[Completion] = []
        self._engine = engine
        self._dice = dice
        self._tokenizer = tokenizer
        self._lines = list(lines)
        self._session = session

    async def __call__(self, request: SampleRequest) -> tuple[Completion, ...]:
        self.asked.append(request)
        self._dice.wanted = cut_oddly(self._lines.pop(0), request, self._tokenizer)
        self._engine.submit(self._engine_request(request))
        while self._engine.has_work:
            self.completions += [completion for _, finished in self._engine.step() for completion in finished]
        return (self.completions[-1],)

    def _engine_request(self, request: SampleRequest) -> Request:
        return Request(
            request_id=request.call,
            ordinal=self._session,
            prompt_token_ids=request.token_ids,
            num_samples=request.num_samples,
            call=request.call,
            session=self._session,
            sampling=Sampling(
                max_completion_tokens=request.max_tokens,
                temperature=TEMPERATURE,
                stop_strings=request.stop,
                stop_token_ids=self._tokenizer.stop_token_ids,
            ),
        )


def cut_oddly(text: str, request: SampleRequest, tokenizer: Tokenizer) -> list[int]:
    """The ids of pieces of one to three characters, and the end token."""
    cuts, ids = random.Random(text), [int(request.token_ids[-1])]
    while text:
        size = cuts.randint(1, MAX_PIECE_CHARACTERS)
        ids += tokenizer.encode_after(text[:size], ids[-1]).tolist()
        text = text[size:]
    return [*ids[1:], tokenizer.stop_token_ids[0]]
