"""A session that says what a test wrote, and keeps what it was asked."""

import asyncio
from collections.abc import Iterable

import msgspec

from freerun.chat.messages import ChatCall, Message, Reply, TokenLogprob, ToolCall

ADDS = ToolCall(id="call_1", name="add", arguments='{"a": 2,  "b":2}')
"""A call of a tool; its white space shows who writes the JSON again."""
MODEL = "policy"


class ScriptedSession:
    """Says its lines one after the other, the last one again and again; an error among them is raised."""

    def __init__(self, *lines: Message | str | Exception, finish_reason: str = "stop") -> None:
        self.calls: list[ChatCall] = []
        self.may_answer = asyncio.Event()
        """Set: the policy is fast. A test that clears it decides when the call ends."""
        self.may_answer.set()
        self._lines = lines or ("It is 4.",)
        self._finish_reason = finish_reason

    async def reply(self, call: ChatCall) -> tuple[Reply, ...]:
        self.calls.append(call)
        number = len(self.calls) - 1
        await self.may_answer.wait()
        line = self._lines[min(number, len(self._lines) - 1)]
        if isinstance(line, Exception):
            raise line
        message = Message(role="assistant", content=line) if isinstance(line, str) else line
        return tuple(self._reply(call, message, f"{number}x{index}") for index in range(call.num_replies))

    def _reply(self, call: ChatCall, message: Message, reply_id: str) -> Reply:
        words = message.content.split(" ")
        sampled = [TokenLogprob(token=word, logprob=-0.5, bytes=word.encode()) for word in words]
        finish_reason = "tool_calls" if message.tool_calls else self._finish_reason
        return msgspec.convert(
            {
                "id": reply_id,
                "message": message,
                "finish_reason": finish_reason,
                "sampled_text": message.content,
                "call": len(self.calls) - 1,
                "num_prompt_tokens": 10,
                "num_completion_tokens": len(words),
                "num_cached_tokens": 4,
                "logprobs": tuple(sampled) if call.wants_logprobs else (),
            },
            Reply,
            from_attributes=True,
        )

    @property
    def last_messages(self) -> tuple[Message, ...]:
        return self.calls[-1].messages


class OneSession:
    """A directory of one session behind any of some keys."""

    model_name = MODEL

    def __init__(self, session: ScriptedSession, *, keys: Iterable[str] = ("k",)) -> None:
        self.session = session
        self._keys = frozenset(keys)

    def accepts(self, key: str) -> bool:
        return key in self._keys

    def find(self, key: str, call: ChatCall) -> ScriptedSession:
        return self.session
