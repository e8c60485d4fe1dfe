"""Tools that the policy may call between its turns.

    ToolCall(name, arguments as JSON) ──► ToolRunner.answer ──► text for the policy

Every error that a call can cause is text for the policy, which can learn from it: a tool that does not exist,
arguments that do not fit, an exception, a tool that takes too long. Only errors beyond its control raise: a tool
server that is gone, or a process full of tools that hang.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

import msgspec

from freerun.chat.messages import Message, Tool, ToolCall
from freerun.errors import ConfigError, RolloutError
from freerun.rollout.abandoned import Abandoned, CallThread, TooManyAbandonedError
from freerun.rollout.tool_schema import ArgumentsError, read_arguments, read_tool

MAX_RESULT_CHARACTERS = 20_000
MAX_ERROR_CHARACTERS = 1_000
MAX_CALLS_PER_TURN = 16
"""Limit on the calls of a turn: a turn may ask for any number of calls, and each costs a thread."""
NUM_REMEMBERED_TOOLS = 256


class ToolServerError(RolloutError):
    """A tool cannot be called for a reason that is not the policy's."""


class PolicyTool(Protocol):
    """The interface of a tool, wherever it runs."""

    @property
    def tool(self) -> Tool: ...

    async def call(self, arguments: str, abandoned: Abandoned) -> Any:
        """Return the result; raises `ArgumentsError` for arguments that do not fit."""
        ...


@dataclass(frozen=True)
class FunctionTool:
    """A Python function as a tool; a plain function runs in a thread, an async one on the event loop."""

    tool: Tool
    function: Callable[..., Any]
    arguments: type[msgspec.Struct]

    async def call(self, arguments: str, abandoned: Abandoned) -> Any:
        values = read_arguments(arguments, self.arguments)
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**values)
        thread = CallThread(f"freerun tool {self.tool.name}", abandoned)
        try:
            result = await thread.call(self.function, **values)
        finally:
            thread.close()
        return await result if inspect.isawaitable(result) else result


@lru_cache(NUM_REMEMBERED_TOOLS)
def function_tool(function: Callable[..., Any]) -> FunctionTool:
    """Wrap the function as a tool; raises `ConfigError` if it cannot be described to the policy."""
    tool, arguments = read_tool(function)
    return FunctionTool(tool, function, arguments)


def as_tools(tools: Iterable[Callable[..., Any] | PolicyTool]) -> dict[str, PolicyTool]:
    """Tools by name; functions are wrapped."""
    named: dict[str, PolicyTool] = {}
    for each in tools:
        tool = cast(PolicyTool, each) if hasattr(each, "tool") else function_tool(each)
        if tool.tool.name in named:
            raise ConfigError(f'two tools are named "{tool.tool.name}"; rename one of them')
        named[tool.tool.name] = tool
    return named


def in_words(tools: Iterable[Tool]) -> str:
    """The tools as text for a system prompt, in the format that is read when a template has none (hermes)."""
    listed = "\n".join(msgspec.json.encode(tool).decode() for tool in tools)
    return (
        f"You may call these functions:\n<tools>\n{listed}\n</tools>\n"
        'To call one, write <tool_call>{"name": "...", "arguments": {...}}</tool_call>. '
        "Its result comes in the next message."
    )


class ToolRunner:
    """Calls tools, each for at most `seconds`; one runner per process."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self.abandoned = Abandoned()

    async def answers(self, tools: Mapping[str, PolicyTool], calls: Sequence[ToolCall]) -> tuple[Message, ...]:
        """The answers to the calls of one turn, in their order; the calls run concurrently."""
        running = [asyncio.create_task(self._answer(tools, call)) for call in calls[:MAX_CALLS_PER_TURN]]
        try:
            texts = await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
        texts += [f"error: at most {MAX_CALLS_PER_TURN} calls in a turn"] * (len(calls) - len(texts))
        return tuple(
            Message(role="tool", content=text, tool_call_id=call.id, name=call.name)
            for text, call in zip(texts, calls, strict=True)
        )

    async def _answer(self, tools: Mapping[str, PolicyTool], call: ToolCall) -> str:
        tool = tools.get(call.name)
        if tool is None:
            return _error(f'there is no tool "{call.name}"; there are {", ".join(tools) or "none"}')
        running = asyncio.create_task(_outcome(tool, call.arguments, self.abandoned))
        try:
            await asyncio.wait({running}, timeout=self._seconds)
        finally:
            if not running.done():
                running.cancel()
                self.abandoned.add(running)  # until the call ends, which ignored its cancellation
        if not running.done():
            return _error(f"{call.name} took longer than {self._seconds:g} seconds and was given up")
        if running.cancelled():
            return _error(f"{call.name} was cancelled")
        return running.result()


async def _outcome(tool: PolicyTool, arguments: str, abandoned: Abandoned) -> str:
    """The result of a call as text for the policy."""
    try:
        return _cut(as_text(await tool.call(arguments, abandoned)), MAX_RESULT_CHARACTERS)
    except (asyncio.CancelledError, ToolServerError, TooManyAbandonedError):
        raise
    except ArgumentsError as error:
        return _error(f"{tool.tool.name} cannot be called with these arguments: {error}")
    except BaseException as error:  # noqa: BLE001 - the edge of user code: the policy is told
        return _error(f"{type(error).__name__}: {_words(error)}")


def as_text(result: Any) -> str:
    """The result of a tool as text for the policy: text as it is, other values as JSON or else as printed."""
    if isinstance(result, str):
        return result
    try:
        return msgspec.json.encode(result).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return str(result)


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - user code again: __str__ of an exception
        return "it cannot be printed"


def _error(text: str) -> str:
    return _cut(f"error: {text}", MAX_ERROR_CHARACTERS)


def _cut(text: str, limit: int) -> str:
    """The text without characters that cannot be encoded, cut to at most `limit` characters."""
    text = text.encode(errors="replace").decode()
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: the first {limit:,} of {len(text):,} characters]"
