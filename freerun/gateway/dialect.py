"""What a dialect is: a body to a `ChatCall`, replies to a body or to events. One file each:

    chat_completions.py     OpenAI, POST /v1/chat/completions
    responses.py            OpenAI, POST /v1/responses
    anthropic.py            Anthropic, POST /v1/messages

A dialect knows nothing of HTTP, keys and sessions. `read` raises `RefusedError` for anything that it cannot serve;
what it ignores is listed in its docstring.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import msgspec

from freerun.chat.messages import CallSampling, ChatCall, Message, Reply
from freerun.gateway.refusals import RefusedError

T = TypeVar("T")

_LINE_SEPARATORS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
"""Some clients split events at these; inside JSON they only occur in strings."""


@dataclass(frozen=True)
class Asked:
    """A request of any dialect."""

    model: str
    call: ChatCall
    is_streamed: bool = False
    sends_usage: bool = False
    """Whether a stream of chat completions ends with the usage."""
    shows_thinking: bool = True
    settings: dict[str, float] = field(default_factory=dict)
    """Sampling settings that the client asked for; `SamplingRule` decides whether it gets them."""
    num_passing: int = 0
    """Messages at the front that a later `previous_response_id` does not bring back: instructions."""
    is_remembered: bool = False
    """Whether a later request may refer to the answer by its id."""
    echo: dict[str, Any] = field(default_factory=dict)
    """What the answer repeats of the body."""

    def sampled(self, sampling: CallSampling) -> Self:
        """The same, with the settings that the client gets."""
        return replace(self, call=msgspec.structs.replace(self.call, sampling=sampling))

    def again(self) -> Self:
        """The same, asked once more by a client that missed the answer."""
        return replace(self, call=msgspec.structs.replace(self.call, is_retry=True))


Recall = Callable[[str], tuple[Message, ...]]
"""The messages up to an earlier response of the same key, by its id; raises `RefusedError`."""


@dataclass(frozen=True)
class Dialect:
    """One way to say the same."""

    read: Callable[[bytes, Recall], Asked]
    answer: Callable[[Asked, Sequence[Reply]], dict[str, Any]]
    events: Callable[[Asked, Sequence[Reply]], Iterator[bytes]]
    """The whole stream, once the replies are known."""
    error: Callable[[RefusedError], dict[str, Any]]
    error_event: Callable[[RefusedError], bytes]
    """The same in a stream that has begun."""


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The body as the dialect expects it, or a refusal that names the place."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise RefusedError(f"the body is not as expected: {error}", param=_place(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(f"the body is not JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise RefusedError("the body is nested too deeply", code="invalid_json") from error


def _place(message: str) -> str:
    """`$.messages[0].role` of msgspec's message, as OpenAI writes it: `messages[0].role`."""
    _, found, place = message.rpartition(" - at `$")
    return place.removesuffix("`").lstrip(".") if found else ""


def data_event(data: Any, event: str = "") -> bytes:
    """A server-sent event."""
    encoded = msgspec.json.encode(data)
    for separator, escaped in _LINE_SEPARATORS:
        encoded = encoded.replace(separator, escaped)
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + encoded + b"\n\n"
