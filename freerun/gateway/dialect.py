"""The interface of a dialect: it converts a body to a `ChatCall`, and replies to a body or to events.

    chat_completions.py     OpenAI, POST /v1/chat/completions
    responses.py            OpenAI, POST /v1/responses
    anthropic.py            Anthropic, POST /v1/messages

A dialect knows nothing about HTTP, keys and sessions. `read` raises `RefusedError` for anything that it cannot
serve; the module's docstring lists what it ignores.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import msgspec

from freerun.chat.messages import CallSampling, ChatCall, Message, Reply
from freerun.gateway.refusals import RefusedError

T = TypeVar("T")

_LINE_SEPARATORS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
"""Characters at which some clients split events; inside JSON they only occur in strings."""


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
    """Sampling settings that the client asked for; `SamplingRule` decides whether they are used."""
    num_passing: int = 0
    """Leading messages that a later `previous_response_id` does not restore: instructions."""
    is_remembered: bool = False
    """Whether a later request may refer to the answer by its id."""
    echo: dict[str, Any] = field(default_factory=dict)
    """The settings of the body that the answer repeats."""

    def sampled(self, sampling: CallSampling) -> Self:
        """A copy with the settings that are used."""
        return replace(self, call=msgspec.structs.replace(self.call, sampling=sampling))

    def again(self) -> Self:
        """A copy marked as a retry by a client that missed the answer."""
        return replace(self, call=msgspec.structs.replace(self.call, is_retry=True))


Recall = Callable[[str], tuple[Message, ...]]
"""Returns the messages up to an earlier response of the same key, by its id; raises `RefusedError`."""


@dataclass(frozen=True)
class Dialect:
    """The functions of one dialect."""

    read: Callable[[bytes, Recall], Asked]
    answer: Callable[[Asked, Sequence[Reply]], dict[str, Any]]
    events: Callable[[Asked, Sequence[Reply]], Iterator[bytes]]
    """The events of the whole stream, once the replies are known."""
    error: Callable[[RefusedError], dict[str, Any]]
    error_event: Callable[[RefusedError], bytes]
    """The error as an event, for a stream that has already begun."""


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a body; a body of another form is refused with the place of the error."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise RefusedError(f"the body is not as expected: {error}", param=_place(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(f"the body is not JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise RefusedError("the body is nested too deeply", code="invalid_json") from error


def _place(message: str) -> str:
    """The place in msgspec's message, such as `$.messages[0].role`, in OpenAI's notation: `messages[0].role`."""
    _, found, place = message.rpartition(" - at `$")
    return place.removesuffix("`").lstrip(".") if found else ""


def data_event(data: Any, event: str = "") -> bytes:
    """A server-sent event."""
    encoded = msgspec.json.encode(data)
    for separator, escaped in _LINE_SEPARATORS:
        encoded = encoded.replace(separator, escaped)
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + encoded + b"\n\n"
