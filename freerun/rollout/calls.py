"""Sends a call of a session to a generator: token ids in, one completion per reply out."""

import asyncio
from collections.abc import Iterator

import msgspec

from freerun.chat.session import SampleRequest
from freerun.protocols import Generator
from freerun.types import Completion, Request, Sampling


async def sample_call(
    generator: Generator,
    asked: SampleRequest,
    sampling: Sampling,
    *,
    ordinal: int,
    sample: int,
    session: int,
    request_ids: Iterator[int],
) -> tuple[Completion, ...]:
    """Sample with `sampling`, except for the call's token limit and stop strings; a client's settings are ignored.

    Each reply is a separate request with its own call number, and so with its own random numbers.
    """
    sampling = msgspec.structs.replace(
        sampling,
        max_completion_tokens=asked.max_tokens,
        stop_strings=tuple(dict.fromkeys((*sampling.stop_strings, *asked.stop))),
    )
    requests = [
        Request(
            request_id=next(request_ids),
            ordinal=ordinal,
            prompt_token_ids=asked.token_ids,
            num_samples=1,
            sampling=sampling,
            sample=sample,
            call=call,
            session=session,
        )
        for call in range(asked.call, asked.call + asked.num_samples)
    ]
    replies = await asyncio.gather(*map(generator.generate, requests))
    return tuple(_of_call(reply, request.call) for request, [reply] in zip(requests, replies, strict=True))


def _of_call(completion: Completion, call: int) -> Completion:
    spans = tuple(msgspec.structs.replace(span, call=call) for span in completion.spans)
    return msgspec.structs.replace(completion, spans=spans)
