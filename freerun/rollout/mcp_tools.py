"""The tools of an MCP server, offered to the policy.

    rollout.tools = ["mcp:python my_server.py"]          a program, over stdin and stdout
    rollout.tools = ["mcp:http://localhost:8000/mcp"]    a server that runs already

An agent worker has one connection to each server, shared by its sessions: do not use a server that keeps state
this way. An error reported by a tool is text for the policy. A lost server is not the policy's fault: the
session fails, and the next call connects again.

Needs the package mcp (`pip install 'freerun[mcp]'`), which is imported only here, when a server is named.
"""

import asyncio
import contextlib
import importlib
import os
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from freerun.chat.messages import Tool
from freerun.errors import ConfigError
from freerun.rollout.abandoned import Abandoned
from freerun.rollout.tool_schema import ArgumentsError
from freerun.rollout.tools import ToolServerError, as_text

PREFIX = "mcp:"
LISTING_SECONDS = 60.0
"""Time limit for a server to start and list its tools."""
_CONNECTION_CLOSED = -32000
"""MCP's error code for a closed connection."""


@contextlib.asynccontextmanager
async def open_server(name: str) -> AsyncIterator[tuple["McpTool", ...]]:
    """The tools of the server "mcp:...", as long as the context lasts."""
    address = name.removeprefix(PREFIX).strip()
    _check(name, address)
    server = McpServer(address)
    try:
        try:
            tools = await server.list_tools()
        except Exception as error:  # errors of the server too, which may have no tools
            raise ConfigError(f"config: rollout.tools: {error}") from error
        yield tuple(McpTool(tool, server) for tool in tools)
    finally:
        await server.close()


def _check(name: str, address: str) -> None:
    try:
        importlib.import_module("mcp")
        words = shlex.split(address)
    except ImportError as error:
        raise ConfigError(
            f"config: rollout.tools: \"{name}\" needs the package mcp ({error}); pip install 'freerun[mcp]'"
        ) from error
    except ValueError as error:
        raise ConfigError(f'config: rollout.tools: "{name}" cannot be read: {error}; fix it') from error
    if not words:
        raise ConfigError(f'config: rollout.tools: "{name}" names no server; write "mcp:python my_server.py"')


@dataclass(frozen=True)
class McpTool:
    """One tool of a server; implements `tools.PolicyTool`."""

    tool: Tool
    server: "McpServer"

    async def call(self, arguments: str, abandoned: Abandoned) -> str:
        try:
            values = msgspec.json.decode(arguments.strip() or "{}", type=dict[str, Any])
        except (ValueError, RecursionError) as error:
            raise ArgumentsError(str(error)) from None
        return await self.server.call(self.tool.name, values)


class McpServer:
    """The connection to a server, opened at first use and again after a loss."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: _Connection | None = None

    async def list_tools(self) -> tuple[Tool, ...]:
        found: list[Tool] = []
        cursor: str | None = None
        while True:
            page = await self._ask("list_tools", cursor=cursor)
            found += [
                Tool(name=tool.name, description=tool.description or "", parameters=tool.input_schema)
                for tool in page.tools
            ]
            cursor = page.next_cursor
            if cursor is None:
                return tuple(found)

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        result = await self._ask("call_tool", name, arguments)
        text = "\n".join(_words(content) for content in result.content) or as_text(result.structured_content)
        return f"error: {text}" if result.is_error else text

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what the client's method returns; a lost connection is closed, and the next call reconnects."""
        if self._connection is None:
            self._connection = _Connection(self._address)
        connection = self._connection
        try:
            client = await connection.client()
            return await getattr(client, method)(*args, **kwargs)
        except Exception as error:  # any transport may raise its own errors
            code = getattr(getattr(error, "error", None), "code", _CONNECTION_CLOSED)
            if code != _CONNECTION_CLOSED:
                raise  # the server's answer to the request
            if self._connection is connection:
                self._connection = None
            await connection.close()
            raise ToolServerError(
                f'the MCP server "{self._address}" cannot be reached: {_cause(error)}; start it, or fix its name'
            ) from error


class _Connection:
    """A client in a separate task, because its context must be exited by the task that entered it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_closing = asyncio.Event()
        self._client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold())

    async def client(self) -> Any:
        return await asyncio.shield(self._client)

    async def close(self) -> None:
        self._is_closing.set()
        await asyncio.wait({self._task})

    async def _hold(self) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(LISTING_SECONDS):
                    client = await stack.enter_async_context(self._new_client())
                self._client.set_result(client)
                await self._is_closing.wait()
        except Exception as error:  # noqa: BLE001 - the edge of a task: the calls that wait for it raise this
            # Once the connection is made, its end is reported by the calls that fail.
            if not self._client.done():
                self._client.set_exception(error)
                self._client.exception()  # retrieved, even if no call waits for it

    def _new_client(self) -> Any:
        mcp = importlib.import_module("mcp")
        if self._address.startswith(("http://", "https://")):
            return mcp.Client(self._address)
        program, *arguments = shlex.split(self._address)
        return mcp.Client(mcp.StdioServerParameters(command=program, args=arguments, env=dict(os.environ)))


def _words(content: Any) -> str:
    """The text of a part of a result; for other kinds of parts only their name."""
    return content.text if content.type == "text" else f"[{content.type}]"


def _cause(error: BaseException) -> str:
    """The first cause inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
