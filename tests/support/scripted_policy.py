"""A policy that says what a test wants: it satisfies `Sample`, and remembers what it was asked."""

import asyncio
from collections.abc import Sequence

import numpy as np

from freerun.chat.session import SampleRequest
from freerun.data.tokenizer import Tokenizer
from freerun.types import Completion, FinishReason, Span


class ScriptedPolicy:
    """Says these texts one after the other, each with the end token; one ending in "..." is cut off there."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str] = ()) -> None:
        self.requests: list[SampleRequest] = []
        self.completions: list[Completion] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._tokenizer = tokenizer
        self._texts = list(texts)

    async def __call__(self, request: SampleRequest) -> tuple[Completion, ...]:
        self.requests.append(request)
        await self.may_answer.wait()
        completions = tuple(self._complete(request, request.call + n) for n in range(request.num_samples))
        self.completions += completions
        return completions

    def _complete(self, request: SampleRequest, call: int) -> Completion:
        text = self._texts.pop(0)
        is_cut = text.endswith("...")
        ids = self._tokenizer.encode_after(text.removesuffix("..."), int(request.token_ids[-1]))
        if not is_cut:
            ids = np.append(ids, np.int32(self._tokenizer.stop_token_ids[0]))
        return completion_of(self._tokenizer, ids, call=call, finish_reason="length" if is_cut else "stop")


def completion_of(
    tokenizer: Tokenizer, ids: Sequence[int] | np.ndarray, *, call: int, finish_reason: FinishReason = "stop"
) -> Completion:
    """As an engine returns it; logprobs and versions say which call it was."""
    token_ids = np.array(ids, dtype=np.int32)
    return Completion(
        token_ids=token_ids,
        logprobs=np.full(len(token_ids), -1.0 - call, np.float32),
        spans=(Span(100 + call, len(token_ids)),) if len(token_ids) else (),
        finish_reason=finish_reason,
        text=tokenizer.decode(token_ids),
    )
