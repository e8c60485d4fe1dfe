"""Plays environments of OpenEnv that a server runs.

    rollout.episode = "openenv:http://host:8000"
    rollout.settings = ['action="message"', ...]

    reset(seed, settings) ──► observation ──► policy ──► step(action) ──► observation, reward, done ──► ...

Each session has its own WebSocket, and behind it its own environment in the server. The policy's text becomes an
action: the value of the action's only text field, or of the field that the setting `action` names; otherwise it is
read as JSON with all fields. Observations are shown in the same way. The other settings are arguments of the
environment's `reset`.

Only the protocol of OpenEnv is used, not its package. Environments whose actions are calls of MCP tools are not
supported.
"""

import asyncio
import contextlib
import importlib.util
import json
import urllib.request
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from freerun.config.rollout import RolloutConfig
from freerun.errors import ConfigError, RolloutError
from freerun.rollout.environment import environment_episode
from freerun.rollout.episode import Episode, Task

SCHEMA_SECONDS = 30.0
"""Time limit for the server to send the schemas of actions and observations."""
MAX_MESSAGE_BYTES = 2**24
MAX_SEED = 2**31
_NOT_SHOWN = {"metadata", "done", "reward"}
"""Fields of every action or observation that are not its content."""


class EnvironmentServerError(RolloutError):
    """A server of environments refused a request, failed, or is gone."""


class _Schemas(msgspec.Struct, frozen=True):
    """The server's answer at `/schema`."""

    action: dict[str, Any]
    observation: dict[str, Any]


class _Message(msgspec.Struct, frozen=True):
    """A message from the server."""

    type: str
    data: dict[str, Any]


class _Observed(msgspec.Struct, frozen=True):
    """The data of an observation."""

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False


@dataclass(frozen=True)
class _Form:
    """How the policy's text becomes an action, and an observation becomes text."""

    action_field: str | None
    """None if the policy writes all fields as JSON."""
    observation_field: str | None
    """None if the policy reads all fields as JSON."""

    def action(self, said: str) -> dict[str, Any] | None:
        """The action, or None if the text is not one."""
        if self.action_field is not None:
            return {self.action_field: said}
        try:
            return msgspec.json.decode(said, type=dict[str, Any])
        except msgspec.DecodeError:
            return None

    def text(self, observation: Mapping[str, Any]) -> str:
        if self.observation_field is not None:
            shown = observation.get(self.observation_field)
            return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
        shown = {name: value for name, value in observation.items() if name not in _NOT_SHOWN}
        return json.dumps(shown, ensure_ascii=False)


@contextlib.asynccontextmanager
async def open_episode(url: str, config: RolloutConfig) -> AsyncIterator[Episode]:
    """The episode that plays the environment of this server."""
    url = url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f'config: rollout.episode = "openenv:{url}" names no server; write openenv:http://host:port'
        )
    if importlib.util.find_spec("websockets") is None:
        raise ConfigError("openenv needs the package websockets; pip install 'freerun[agents]'")
    arguments = dict(config.arguments)
    fields = arguments.pop("action", None), arguments.pop("observation", None)
    form = _form(url, await _schemas(url), *fields)

    class Environment(_Environment):
        def __init__(self) -> None:
            super().__init__(url, form, arguments)

    yield environment_episode(f"openenv:{url}", Environment)


async def _schemas(url: str) -> _Schemas:
    def fetch() -> bytes:
        with urllib.request.urlopen(f"{url}/schema", timeout=SCHEMA_SECONDS) as response:
            body: bytes = response.read(MAX_MESSAGE_BYTES)
            return body

    try:
        return msgspec.json.decode(await asyncio.to_thread(fetch), type=_Schemas)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f'config: rollout.episode = "openenv:{url}": no environment answers at {url}/schema ({error}); start '
            "its server first"
        ) from error


def _form(url: str, schemas: _Schemas, action: str | None, observation: str | None) -> _Form:
    """The form that the settings name, or that the schemas imply."""
    for setting, field, schema in (
        ("action", action, schemas.action),
        ("observation", observation, schemas.observation),
    ):
        if field is not None and field not in schema.get("properties", {}):
            raise ConfigError(
                f"config: rollout.settings: {setting} = {field!r} is not a field of the {setting}s of {url}; its "
                f"fields are {', '.join(_fields(schema))}"
            )
    return _Form(action or _only_text(schemas.action), observation or _only_text(schemas.observation))


def _fields(schema: Mapping[str, Any]) -> list[str]:
    return [name for name in schema.get("properties", {}) if name not in _NOT_SHOWN]


def _only_text(schema: Mapping[str, Any]) -> str | None:
    """The only field, if it is a text field."""
    match _fields(schema):
        case [name] if schema["properties"][name].get("type") == "string":
            return name
    return None


class _Environment:
    """One session with the server; played by `environment.py`."""

    def __init__(self, url: str, form: _Form, arguments: Mapping[str, Any]) -> None:
        self._url = url
        self._form = form
        self._arguments = arguments
        self._stack = contextlib.AsyncExitStack()
        self._socket: Any = None

    async def reset(self, task: Task) -> str:
        """Start the task and return the first observation; equal for all sessions of a group."""
        from websockets.asyncio.client import connect

        address = "ws" + self._url.removeprefix("http") + "/ws"
        try:
            self._socket = await self._stack.enter_async_context(connect(address, max_size=MAX_MESSAGE_BYTES))
        except (OSError, TimeoutError) as error:
            raise EnvironmentServerError(f"openenv: {self._url} cannot be reached: {error}") from error
        seed = task.random.randrange(MAX_SEED)
        observed = _observed(self._url, await self._ask("reset", {"seed": seed, **self._arguments}))
        return "\n\n".join(filter(None, (task.text, self._form.text(observed.observation))))

    async def step(self, action: str) -> tuple[str, float, bool]:
        fields = self._form.action(action)
        if fields is None:
            return "This is not an action: write a JSON object.", 0.0, False
        message = await self._ask("step", fields)
        if message.type == "error" and message.data.get("code") == "VALIDATION_ERROR":
            return f"This is not an action: {_reasons(message)}", 0.0, False
        observed = _observed(self._url, message)
        return self._form.text(observed.observation), observed.reward or 0.0, observed.done

    async def close(self) -> None:
        await self._stack.aclose()

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> _Message:
        from websockets.exceptions import ConnectionClosed, WebSocketException

        try:
            with contextlib.suppress(ConnectionClosed):  # a server that refuses gives its reason before it closes
                await self._socket.send(json.dumps({"type": kind, "data": data}))
            return msgspec.json.decode(await self._socket.recv(), type=_Message)
        except (WebSocketException, msgspec.DecodeError) as error:
            raise EnvironmentServerError(f"openenv: {self._url} failed at {kind}: {error}") from error


def _reasons(message: _Message) -> str:
    """The server's explanation of what is wrong with the fields of an action."""
    errors = message.data.get("errors", [])
    found = [f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg')}" for error in errors]
    return "; ".join(found) or str(message.data.get("message", ""))


def _observed(url: str, message: _Message) -> _Observed:
    if message.type != "observation":
        said = message.data.get("message", message.data)
        remedy = (
            "; let it have more (max_concurrent_envs), or lower rollout.sessions_per_worker"
            if message.data.get("code") == "CAPACITY_REACHED"
            else ""
        )
        raise EnvironmentServerError(f"openenv: {url} reports: {said}{remedy}")
    try:
        return msgspec.convert(message.data, _Observed, strict=False)
    except msgspec.ValidationError as error:
        raise EnvironmentServerError(f"openenv: {url} sent an observation that cannot be read: {error}") from error
