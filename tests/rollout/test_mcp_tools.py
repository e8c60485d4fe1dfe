"""The tools of a real MCP server, over stdin and stdout and over HTTP."""

import asyncio
import contextlib
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from free_ports import free_port
from played_sessions import ScriptedSession, lines, play, said, tool_call
from process_table import children_running

from freerun.chat.messages import ToolCall
from freerun.config.rollout import RolloutConfig
from freerun.errors import ConfigError
from freerun.rollout.episode_run import EpisodeDone, EpisodeFailed
from freerun.rollout.loading import open_episode
from freerun.rollout.mcp_tools import McpTool, open_server
from freerun.rollout.tools import ToolRunner, ToolServerError, as_tools

SERVER = f"mcp:{sys.executable} {shlex.quote(str(Path(__file__).parents[1] / 'support' / 'mcp_server.py'))}"


async def ask(tools: tuple[McpTool, ...], name: str, arguments: str = "{}", *, seconds: float = 60.0) -> str:
    call = ToolCall(id="1", name=name, arguments=arguments)
    [answer] = await ToolRunner(seconds=seconds).answers(as_tools(tools), [call])
    return answer.content


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[tuple[McpTool, ...]]:
    async with open_server(SERVER) as tools:
        yield tools
    assert children_running("mcp_server.py") == []


def test_the_tools_of_a_server_are_described_and_called() -> None:
    async def run() -> None:
        async with opened() as tools:
            described = {tool.tool.name: tool.tool for tool in tools}
            assert described["add"].description == "Add two numbers."
            assert described["add"].parameters["required"] == ["a", "b"]
            assert await ask(tools, "add", '{"a": 1, "b": 2}') == "3"
            assert await ask(tools, "rows") == '{\n  "a": 1\n}\n{\n  "a": 2\n}'

    asyncio.run(run())


def test_what_fails_is_told_to_the_policy() -> None:
    async def run() -> None:
        async with opened() as tools:
            assert await ask(tools, "fail", '{"why": "no room"}') == "error: Error executing tool fail: no room"
            assert (await ask(tools, "add", '{"a": "x"}')).startswith("error: ")
            assert (await ask(tools, "add", "a = 1")).startswith(
                "error: add cannot be called with these arguments"
            )
            assert (await ask(tools, "add", "[1, 2]")).startswith(
                "error: add cannot be called with these arguments"
            )
            assert (
                await ask(tools, "hang", seconds=0.05)
                == "error: hang took longer than 0.05 seconds and was given up"
            )
            assert await ask(tools, "add", '{"a": 1, "b": 2}') == "3"

    asyncio.run(run())


@pytest.mark.slow
def test_a_server_that_is_gone_fails_the_session_and_is_started_again() -> None:
    async def run() -> None:
        async with opened() as tools:
            first = await ask(tools, "pid")
            with pytest.raises(ToolServerError, match="cannot be reached: MCPError: Connection closed"):
                await ask(tools, "end")
            assert await ask(tools, "pid") != first

    asyncio.run(run())


@pytest.mark.slow
def test_calls_in_flight_when_a_server_ends_all_fail() -> None:
    async def run() -> None:
        async with opened() as tools:
            calls = [asyncio.create_task(ask(tools, name)) for name in ("hang", "hang", "end")]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [ToolServerError] * 3
            assert await ask(tools, "add", '{"a": 1, "b": 2}') == "3"

    asyncio.run(run())


@pytest.mark.slow
def test_a_server_over_http_is_called_and_found_again_after_it_was_gone() -> None:
    def start() -> subprocess.Popen[bytes]:
        words = shlex.split(SERVER.removeprefix("mcp:"))
        return subprocess.Popen([*words, str(port)], stderr=subprocess.DEVNULL)

    async def wait_until_it_listens() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return await writer.wait_closed()
            await asyncio.sleep(0.05)

    async def run() -> None:
        server = start()
        try:
            await wait_until_it_listens()
            async with open_server(f"mcp:http://127.0.0.1:{port}/mcp") as tools:
                assert await ask(tools, "add", '{"a": 1, "b": 2}') == "3"
                with pytest.raises(ToolServerError, match="cannot be reached"):
                    await ask(tools, "end")
                server.wait()
                with pytest.raises(ToolServerError, match="cannot be reached"):
                    await ask(tools, "add", '{"a": 1, "b": 2}')
                server = start()
                await wait_until_it_listens()
                assert await ask(tools, "add", '{"a": 1, "b": 2}') == "3"
        finally:
            server.kill()
            server.wait()

    port = free_port()
    asyncio.run(run())


def test_a_recipe_may_name_a_server_as_its_tools() -> None:
    async def run() -> None:
        async with open_episode(RolloutConfig(tools=(SERVER,))) as episode:
            session = ScriptedSession(lines(tool_call("add", '{"a": 2, "b": 2}'), "4"))
            outcome = await play(episode, session=session)
            assert isinstance(outcome, EpisodeDone)
            assert outcome.reward.is_correct
            assert said(session.calls[1].messages)[-1] == "tool: 4"
            lost = await play(episode, tool_call("end"))
            assert isinstance(lost, EpisodeFailed)
            assert "cannot be reached" in lost.reason

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"mcp:{sys.executable} no_server.py", "cannot be reached: MCPError: Connection closed"),
        ("mcp:no-such-program", "cannot be reached: FileNotFoundError"),
        ("mcp:http://127.0.0.1:9/mcp", "cannot be reached: Connect"),
        ("mcp:", "names no server"),
        ("mcp:'unclosed", "cannot be read: No closing quotation"),
    ],
)
def test_a_server_that_cannot_be_reached_is_refused(name: str, words: str) -> None:
    async def run() -> None:
        async with open_server(name):
            pass

    with pytest.raises(ConfigError, match=words):
        asyncio.run(run())


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)

    async def run() -> None:
        async with open_server(SERVER):
            pass

    with pytest.raises(ConfigError, match=r"pip install 'freerun\[mcp\]'"):
        asyncio.run(run())
