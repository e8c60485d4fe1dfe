"""Messages, tools, calls and replies: what clients and the policy exchange, independent of any API dialect.

    ChatCall (messages, tools) ──► ChatSession.reply ──► Reply (a message, and how it was sampled)

The gateway's dialects and an episode's chat translate to these structs. Contents are flat text: a dialect joins
the parts of a content, and turns null and missing contents into "". This module knows no tokens or templates.
"""

from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
AUTO, NONE, REQUIRED = "auto", "none", "required"
"""Values of `ChatCall.tool_choice`, besides the name of a tool."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the policy to call a tool."""

    id: str
    """Clients return it unchanged; the result of the call names it."""
    name: str
    arguments: str
    """JSON text, as the policy wrote it if its format is JSON."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """For the assistant."""
    tool_call_id: str = ""
    """For a tool's result: id of the call it answers."""
    name: str = ""
    """For a tool's result: name of the tool."""
    thinking: str = ""
    """For the assistant: what it wrote between `<think>` and `</think>`."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the policy may call."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of an object; empty for a function without parameters."""


class CallSampling(msgspec.Struct, frozen=True, kw_only=True):
    """How a client wants its replies sampled; None leaves a setting to the recipe."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


AS_IN_RECIPE = CallSampling()


class ChatCall(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the policy: the next message of this conversation."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str = AUTO
    """`auto`, `none`, `required`, or the name of a tool that must be called."""
    max_tokens: int | None = None
    """None for as many as the limits of the session allow."""
    stop: tuple[str, ...] = ()
    """The reply's text ends before the first of these; its tokens include it."""
    num_replies: int = 1
    sampling: CallSampling = AS_IN_RECIPE
    """Never set where replies are trained on, because the recipe decides there."""
    wants_logprobs: bool = False
    is_retry: bool = False
    """The client repeats a call whose answer it missed: join an equal call in flight, or repeat its answer."""

    @property
    def num_characters(self) -> int:
        """Number of characters in messages and tools."""
        said = sum(
            len(message.content) + sum(len(made.arguments) for made in message.tool_calls)
            for message in self.messages
        )
        return said + len(msgspec.json.encode(self.tools))


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A sampled token and its behaviour logprob."""

    token: str
    logprob: float
    bytes: bytes
    """A character may be spread over several tokens; their concatenated bytes are the text."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the policy."""

    id: str
    """Unique across all sessions."""
    message: Message
    finish_reason: Literal["stop", "length", "tool_calls"]
    sampled_text: str
    """All sampled text: with thinking, tool calls and stop string, without the end token."""
    call: int
    """Number of this reply in its session: the `call` of its spans, and its index in `Reward.turns`."""
    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int = 0
    """Prompt tokens that an earlier turn of the session had, which an engine need not compute again."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per sampled token if the call asked for them."""

    @property
    def text(self) -> str:
        """The policy's text, without thinking and tool calls."""
        return self.message.content
