"""Makes the episode of a recipe from `rollout.episode`, `rollout.tools` or `rollout.command`.

    episode = "module:function"       async def function(task, policy) -> reward
    episode = "module:Class"          an environment with reset and step (environment.py)
    episode = "PREFIX:NAME"           an adapter of another library's environments
    tools = ["module:function"]       a conversation with these tools, graded (tool_loop.py)
    tools = ["mcp:COMMAND or URL"]    the same with the tools of a server (mcp_tools.py)
    command = "PROGRAM"               any program as the agent (command.py)

Importing runs the user's code, so this happens in an agent worker. Everything that can be refused is refused here,
before the first session.
"""

import contextlib
import importlib
import inspect
import re
from collections.abc import AsyncIterator
from typing import Any

from freerun.config.rollout import RolloutConfig
from freerun.config.user_code import check_signature, import_named
from freerun.errors import ConfigError
from freerun.rollout.command import command_episode
from freerun.rollout.environment import EPISODE_SETTING, environment_episode
from freerun.rollout.episode import Episode
from freerun.rollout.mcp_tools import PREFIX as MCP_PREFIX
from freerun.rollout.mcp_tools import open_server
from freerun.rollout.tool_loop import tool_episode
from freerun.rollout.tools import PolicyTool, as_tools, function_tool

TOOLS_SETTING = "rollout.tools"
ADAPTERS = {
    "openenv": "freerun.rollout.openenv_episode",
    "verifiers": "freerun.rollout.verifiers_episode",
}
"""The module behind each prefix of `rollout.episode`. Its `open_episode(name, config)` is an async context manager
that yields an episode; `name` is the text after the prefix.
"""


@contextlib.asynccontextmanager
async def open_episode(config: RolloutConfig) -> AsyncIterator[Episode]:
    """The episode for all sessions of this process; its resources are closed with the context."""
    prefix, _, name = config.episode.partition(":")
    async with contextlib.AsyncExitStack() as stack:
        if config.command:
            yield command_episode(config.command)
        elif config.tools:
            yield tool_episode(await _open_tools(config.tools, stack))
        elif prefix in ADAPTERS:
            adapter = importlib.import_module(ADAPTERS[prefix])
            yield await stack.enter_async_context(adapter.open_episode(name, config))
        else:
            yield load_episode(config.episode)


def reads_endpoint(config: RolloutConfig) -> bool:
    """Whether the module of `rollout.episode` mentions `policy.base_url` or `policy.api_key`."""
    prefix = config.episode.partition(":")[0]
    try:
        source = inspect.getsource(importlib.import_module(ADAPTERS.get(prefix, prefix)))
    except (ImportError, OSError, TypeError, ValueError):  # no source to read: the first session will show it
        return False
    return re.search(r"\bpolicy\.(base_url|api_key)\b", source) is not None


def load_episode(name: str) -> Episode:
    """The user's function or environment "module:name"."""
    _, found = import_named(name, setting=EPISODE_SETTING)
    if inspect.isclass(found):
        return environment_episode(name, found)
    _check_function(name, found)
    episode: Episode = found
    return episode


def _check_function(name: str, function: Any) -> None:
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__)
    if not is_async:
        raise ConfigError(
            f'config: {EPISODE_SETTING}: "{name}" is not async; define it as async def episode(task, policy)'
        )
    check_signature(function, None, None, name=name, setting=EPISODE_SETTING, shape="episode(task, policy)")


async def _open_tools(names: tuple[str, ...], stack: contextlib.AsyncExitStack) -> tuple[PolicyTool, ...]:
    tools: list[PolicyTool] = []
    for name in names:
        if name.startswith(MCP_PREFIX):
            tools += await stack.enter_async_context(open_server(name))
        else:
            tools.append(_load_tool(name))
    as_tools(tools)  # raises for two tools of one name
    return tuple(tools)


def _load_tool(name: str) -> PolicyTool:
    _, function = import_named(name, setting=TOOLS_SETTING)
    try:
        return function_tool(function)
    except ConfigError as error:
        raise ConfigError(f'config: {TOOLS_SETTING}: "{name}": {error}') from error
