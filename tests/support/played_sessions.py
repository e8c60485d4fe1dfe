"""A policy that says what a function says, for tests of episodes: no tokens, no model, no engine."""

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from freerun.chat.messages import ChatCall, Message, Reply, ToolCall
from freerun.chat.sequences import SessionSequence
from freerun.errors import SessionEndedError, TruncatedError
from freerun.rollout.clock import SessionClock
from freerun.rollout.episode import Endpoint, Episode, Policy, Task
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed, run_episode
from freerun.rollout.tools import ToolRunner
from freerun.types import Completion, Grade, Reward, Span

Words = str | Message
Script = Callable[[ChatCall], Words | Awaitable[Words]]
ENDPOINT = Endpoint("http://127.0.0.1:1/v1", "secret")


class ScriptedSession:
    """Implements `episode.PolicySession`: each reply is what the script makes of the call."""

    def __init__(self, script: Script, *, max_turns: int = 100) -> None:
        self.calls: list[ChatCall] = []
        self.is_truncated = False
        self.is_ended = False
        self._script = script
        self._max_turns = max_turns

    @property
    def num_calls(self) -> int:
        return len(self.calls)

    async def reply(self, call: ChatCall) -> tuple[Reply, ...]:
        if self.is_ended:
            raise SessionEndedError("the session has ended")
        if self.num_calls >= self._max_turns:
            self.is_truncated = True
            raise TruncatedError(f"the session is at its limit of {self._max_turns} turns")
        said = self._script(call)
        said = said if isinstance(said, str | Message) else await said
        message = said if isinstance(said, Message) else Message(role="assistant", content=said)
        self.calls.append(call)
        reply = Reply(
            id=f"reply-{self.num_calls}",
            message=message,
            finish_reason="tool_calls" if message.tool_calls else "stop",
            sampled_text=message.content,
            call=self.num_calls - 1,
            num_prompt_tokens=1,
            num_completion_tokens=1,
        )
        return (reply,)

    def sequences(self) -> tuple[SessionSequence, ...]:
        """One of one token for each call."""
        ones = np.ones(1, dtype=np.int32)
        return tuple(
            SessionSequence(
                prompt_token_ids=ones,
                completion=Completion(
                    token_ids=ones,
                    logprobs=-ones.astype(np.float32),
                    spans=(Span(version=0, num_tokens=1, call=call),),
                    finish_reason="stop",
                    text="",
                ),
            )
            for call in range(self.num_calls)
        )

    def end(self) -> None:
        self.is_ended = True


def lines(*words: Words) -> Script:
    """A policy that says these, one after the other, and then the last one again and again."""
    said = itertools.chain(words, itertools.repeat(words[-1]))
    return lambda call: next(said)


def tool_call(name: str, arguments: str = "{}", *, content: str = "") -> Message:
    call = ToolCall(id=f"call-{name}", name=name, arguments=arguments)
    return Message(role="assistant", content=content, tool_calls=(call,))


def make_policy(session: ScriptedSession, *, system: str = "", tool_seconds: float = 30.0) -> Policy:
    tools = ToolRunner(seconds=tool_seconds)
    return Policy(session=session, name="tiny", endpoint=lambda: ENDPOINT, system=system, tools=tools)


async def is_answer_4(text: str) -> Grade:
    return Reward(5.0, True, {"number": 1.0}) if text == "4" else Reward(-5.0, False)


def make_task(**fields: Any) -> Task:
    usual: dict[str, Any] = {"text": "2 + 2 =", "answer": "4", "key": "sums:1", "grader": is_answer_4}
    return Task(**usual | fields)


async def play(
    episode: Episode, *words: Words, session: ScriptedSession | None = None, seconds: float = 60.0, **task: Any
) -> EpisodeDone | EpisodeFailed:
    """One session of the episode with a policy that says these words."""
    policy = make_policy(session or ScriptedSession(lines(*words or ("",))))
    return await run_episode(episode, make_task(**task), policy, SessionClock(seconds))


def said(messages: Sequence[Message]) -> list[str]:
    return [f"{message.role}: {message.content}" for message in messages]
