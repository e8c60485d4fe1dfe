"""Messages, tools, calls and replies: what a client and the policy say to each other, in no dialect.

    ChatCall (messages, tools) ──► ChatSession.reply ──► Reply (a message, and how it was sampled)

The gateway's dialects and the chat of an episode translate to these structs. Contents are flat text: a dialect
joins the parts of a content, and turns null and missing contents into "". Tokens and templates are unknown here.
"""

from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
AUTO, NONE, REQUIRED = "auto", "none", "required"
"""`ChatCall.tool_choice`, if it is not the name of a tool."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """The policy asks for a tool."""

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
    """Of the assistant."""
    tool_call_id: str = ""
    """Of a tool's result: the call it answers."""
    name: str = ""
    """Of a tool's result: the tool."""
    thinking: str = ""
    """Of the assistant: what it wrote between `<think>` and `</think>`."""


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
    """What a client asks of the policy: the next message of this conversation."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str = AUTO
    """`auto`, `none`, `required`, or the name of a tool that must be called."""
    max_tokens: int | None = None
    """None: as many as the limits of the session leave."""
    stop: tuple[str, ...] = ()
    """The reply's text ends before the first of these; its tokens include it."""
    num_replies: int = 1
    sampling: CallSampling = AS_IN_RECIPE
    """Never set where replies are trained on: the recipe decides there."""
    wants_logprobs: bool = False
    is_retry: bool = False
    """The client repeats a call whose answer it missed: an equal call in flight is joined, an answer repeated."""

    @property
    def num_characters(self) -> int:
        """Of what was said, and of the tools."""
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
    """A character may be spread over several tokens; their bytes together are the text."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the policy."""

    id: str
    """Unique over all sessions."""
    message: Message
    finish_reason: Literal["stop", "length", "tool_calls"]
    sampled_text: str
    """All that was sampled, as text: thinking, tool calls and stop string included, the end token not."""
    call: int
    """Number of this reply in its session: the `call` of its spans, the index in `Reward.turns`."""
    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int = 0
    """Prompt tokens that an earlier turn of the session had: what an engine need not compute again."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per sampled token if the call asked for them."""

    @property
    def text(self) -> str:
        """What the policy said, without thinking and tool calls."""
        return self.message.content
