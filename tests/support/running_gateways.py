"""A gateway that really runs: in a thread with an event loop of its own, reached over loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI
from scripted_sessions import ScriptedSession

from freerun.gateway.server import Gateway
from freerun.gateway.sessions import SessionDirectory
from freerun.types import Sampling

T = TypeVar("T")

SAMPLING = Sampling(max_completion_tokens=64, temperature=0.7, top_p=0.9, top_k=20)
CLOSE_SECONDS = 60


class RunningGateway:
    """A gateway and the loop it runs in."""

    def __init__(self, sessions: SessionDirectory, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.gateway = self.run(self._made(sessions, settings))
        self.base_url = self.run(self.gateway.start())
        self.origin = self.gateway.origin

    async def _made(self, sessions: SessionDirectory, settings: dict[str, Any]) -> Gateway:
        return Gateway(sessions, sampling=settings.pop("sampling", SAMPLING), **settings)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it in the loop of the gateway."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CLOSE_SECONDS)

    def soon(self, function: Any, *arguments: Any) -> None:
        """Call it in the loop of the gateway."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        self.run(self.gateway.close())
        left = self.run(self._tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert left == [], "tasks are left"

    async def _tasks(self) -> list[str]:
        await asyncio.sleep(0)
        return [str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    def openai(self, **settings: Any) -> OpenAI:
        return OpenAI(**{"base_url": self.base_url, "api_key": "k", **settings})

    def async_openai(self, **settings: Any) -> AsyncOpenAI:
        return AsyncOpenAI(**{"base_url": self.base_url, "api_key": "k", **settings})

    def anthropic(self, **settings: Any) -> Anthropic:
        return Anthropic(**{"base_url": self.origin, "api_key": "k", **settings})

    def async_anthropic(self, **settings: Any) -> AsyncAnthropic:
        return AsyncAnthropic(**{"base_url": self.origin, "api_key": "k", **settings})

    def http(self, *, key: str = "k", **settings: Any) -> httpx2.Client:
        """A plain client of `/v1/...`."""
        headers = {"authorization": f"Bearer {key}", **settings.pop("headers", {})}
        return httpx2.Client(base_url=self.base_url, headers=headers, timeout=60, **settings)


Behind = Callable[[ScriptedSession], RunningGateway]
"""Puts a session behind a gateway that runs."""


@contextmanager
def running_gateway(sessions: SessionDirectory, **settings: Any) -> Iterator[RunningGateway]:
    """Closed in the end, and checked to leave no task behind."""
    gateway = RunningGateway(sessions, **settings)
    try:
        yield gateway
    finally:
        gateway.close()
