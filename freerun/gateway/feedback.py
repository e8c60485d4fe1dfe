"""`POST /v1/feedback`: a client rates a reply by the id of its answer. Exists only if there is a listener."""

from collections.abc import Callable

import msgspec

from freerun.config.values import MAX_REWARD
from freerun.gateway import anthropic, chat_completions, responses
from freerun.gateway.dialect import decode
from freerun.gateway.refusals import RefusedError

_PREFIXES = (chat_completions.COMPLETION_PREFIX, responses.RESPONSE_PREFIX, anthropic.MESSAGE_PREFIX)


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """A rating by a client."""

    key: str
    """The key that the client sent."""
    reply_id: str
    reward: float


GiveFeedback = Callable[[Feedback], bool]
"""Takes a rating; False if it does not know the reply."""


class _Body(msgspec.Struct, frozen=True):
    id: str
    reward: float


_decoder = msgspec.json.Decoder(_Body)


def read_feedback(body: bytes, *, key: str) -> Feedback:
    asked = decode(_decoder, body)
    prefix = next((prefix for prefix in _PREFIXES if asked.id.startswith(prefix)), None)
    if prefix is None:
        raise RefusedError(f'id: "{asked.id}" is not the id of an answer, such as chatcmpl-...', param="id")
    if not abs(asked.reward) <= MAX_REWARD:  # nan is not
        raise RefusedError(f"reward: must be a number from {-MAX_REWARD:g} to {MAX_REWARD:g}", param="reward")
    return Feedback(key=key, reply_id=asked.id.removeprefix(prefix), reward=asked.reward)
