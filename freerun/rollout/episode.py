"""The objects an episode works with: the task, the policy, and conversations with the policy.

    async def episode(task: Task, policy: Policy) -> float | Reward:
        reply = await policy.chat(tools=[calc]).run(task.text, max_turns=4)
        return await task.grade(reply.text)

An episode is one session: everything that the policy samples in it, in any number of conversations or over HTTP at
`policy.base_url`, shares its reward. At the session's limits a call raises `TruncatedError`, which an episode may
catch to score what was reached; otherwise the reward is 0.

This module does not know how tokens are sampled (`chat.session.ChatSession` does) or in which process it runs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from freerun.chat.messages import ChatCall, Message, Reply
from freerun.chat.sequences import SessionSequence
from freerun.errors import RolloutError
from freerun.rollout.tools import PolicyTool, ToolRunner, as_tools, in_words
from freerun.types import Grade, GradeFailed, Reward

Episode = Callable[["Task", "Policy"], Awaitable[Any]]
"""Returns a number, a bool or a `Reward`, which `episode_run.py` checks."""


def leave_fork(pid: int) -> None:
    """End this process if it is a fork of process `pid`: it must not use the sockets of its parent."""
    if os.getpid() != pid:
        os._exit(0)


class GradedValue(float):
    """The value of a reward with the whole reward attached, for an episode that returns it unchanged."""

    reward: Reward

    def __new__(cls, reward: Reward) -> GradedValue:
        value = super().__new__(cls, reward.value)
        value.reward = reward
        return value


@dataclass(frozen=True, kw_only=True)
class Task:
    """The subject of a session: a prompt of the run, with its data."""

    text: str
    answer: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the data row that the prompt was made from."""
    key: str = ""
    ordinal: int = 0
    sample: int = 0
    """Index of this session in its group."""
    seed: int = 0
    """The run's seed."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`rollout.settings`, by name."""
    is_evaluation: bool = False
    grader: Callable[[str], Awaitable[Grade]] = field(repr=False)

    @cached_property
    def random(self) -> random.Random:
        """Equal for all sessions of a group, and for a repeated session: they play the same game."""
        return random.Random(f"{self.seed}/{self.ordinal}")

    async def grade(self, text: str) -> float:
        """The grade that the recipe's grader gives to this text as the completion of the prompt."""
        if not isinstance(text, str):
            raise TypeError(f"task.grade takes the text to grade, not a {type(text).__name__}: {text!r:.200}")
        grade = await self.grader(text)
        if isinstance(grade, GradeFailed):
            raise RolloutError(f"grading failed: {grade.reason}")
        return GradedValue(grade)


class Endpoint(NamedTuple):
    """The HTTP endpoint of a session's policy."""

    base_url: str
    api_key: str


class PolicySession(Protocol):
    """The part of `chat.session.ChatSession` that a policy needs: it samples and records tokens."""

    @property
    def num_calls(self) -> int: ...

    @property
    def is_truncated(self) -> bool: ...

    async def reply(self, call: ChatCall) -> tuple[Reply, ...]: ...

    def sequences(self) -> tuple[SessionSequence, ...]: ...

    def end(self) -> None: ...


class Policy:
    """The trained model, as seen by one session."""

    def __init__(
        self,
        *,
        session: PolicySession,
        name: str,
        endpoint: Callable[[], Endpoint],
        system: str,
        tools: ToolRunner,
        shows_tools: bool = True,
    ) -> None:
        self.name = name
        """The model's name in calls over HTTP."""
        self.session = session
        self.tools = tools
        self._endpoint = endpoint
        self._system = system
        self._shows_tools = shows_tools
        self._pid = os.getpid()

    @property
    def base_url(self) -> str:
        """Base URL of an endpoint that speaks OpenAI's and Anthropic's dialects."""
        return self._endpoint().base_url

    @property
    def api_key(self) -> str:
        """This session's key: calls made with it are recorded in this session."""
        return self._endpoint().api_key

    def chat(self, *, tools: Iterable[Callable[..., Any] | PolicyTool] = (), system: str | None = None) -> Chat:
        """Start a new conversation; `system` is `data.system_prompt` unless given.

        If the chat template does not show the tools to the policy, the system prompt does.
        """
        system = self._system if system is None else system
        offered = as_tools(tools)
        if offered and not self._shows_tools:
            system = "\n\n".join(filter(None, [system, in_words(tool.tool for tool in offered.values())]))
        return Chat(self, tools=offered, system=system)

    async def reply(self, call: ChatCall) -> Reply:
        """One message of the policy."""
        leave_fork(self._pid)
        [reply] = await self.session.reply(call)
        return reply


class Chat:
    """A conversation with the policy. It only grows: earlier messages stay as they were sampled."""

    def __init__(self, policy: Policy, *, tools: Mapping[str, PolicyTool], system: str) -> None:
        self._policy = policy
        self._tools = tools
        self._messages = [Message(role="system", content=system)] if system else []

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    async def say(self, text: str) -> Reply:
        """Send `text` to the policy and return its reply; tool calls in it are not made."""
        if not isinstance(text, str):
            raise TypeError(f"chat.say takes text, not a {type(text).__name__}: {text!r:.200}")
        self.observe(Message(role="user", content=text))
        return await self.reply()

    async def run(self, text: str, *, max_turns: int | None = None) -> Reply:
        """Send `text` and make the tool calls that the policy asks for, until it answers without one.

        After `max_turns` replies the last reply is returned, and its tool calls are not made.
        """
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns = {max_turns} leaves the policy no turn; it must be at least 1")
        reply = await self.say(text)
        num_turns = 1
        while reply.message.tool_calls and num_turns != max_turns:
            self.observe(*await self._policy.tools.answers(self._tools, reply.message.tool_calls))
            reply = await self.reply()
            num_turns += 1
        return reply

    def observe(self, *messages: Message) -> None:
        """Add messages to the conversation; the policy sees them with its next reply."""
        self._messages += messages

    async def reply(self) -> Reply:
        """Sample the policy's next message and add it to the conversation."""
        tools = tuple(tool.tool for tool in self._tools.values())
        reply = await self._policy.reply(ChatCall(messages=self.messages, tools=tools))
        self._messages.append(reply.message)
        return reply
