"""Clients that hold conversations with a server of chat completions, as fast as it answers. Standard library only.

Each connection holds one conversation after the other, each with its own key unless there is one for all. A
call sends the whole history, with the replies as they came.
"""

import asyncio
import itertools
import json
import time
from typing import Any

from asked import answer

SYSTEM = "You are a careful assistant. Answer in one sentence. " * 4
QUESTION = (
    "Question {number}: which of the things that were said before matters most for what comes next, and why? "
)
numbers = itertools.count()


class Connection:
    """HTTP/1.1 with keep-alive: one request after the other."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def post(self, body: bytes, key: str) -> dict[str, Any]:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        content = await self._reader.readexactly(int(headers["content-length"]))
        if " 200 " not in status:
            raise SystemExit(f"{status}: {content[:500]!r}")
        parsed: dict[str, Any] = json.loads(content)
        return parsed

    def close(self) -> None:
        self._writer.close()


async def converse(connection: Connection, key: str, num_turns: int, end: float) -> int:
    """How many calls were answered before the end."""
    messages = [{"role": "system", "content": SYSTEM}]
    for turn in range(num_turns):
        messages.append({"role": "user", "content": QUESTION.format(number=turn) * 2})
        body = json.dumps({"model": "policy", "messages": messages, "max_tokens": 64}).encode()
        completion = await connection.post(body, key)
        if time.perf_counter() > end:
            return turn
        messages.append({"role": "assistant", "content": completion["choices"][0]["message"]["content"]})
    return num_turns


async def load(
    port: int, key: str, num_connections: int, num_turns: int, seconds: float, num_conversations: int
) -> int:
    """Calls answered until the time is over, or until so many conversations have been held."""
    end = time.perf_counter() + seconds
    places = iter(range(num_conversations))

    async def hold_conversations() -> int:
        connection = Connection(port)
        await connection.open()
        num_calls = 0
        while time.perf_counter() < end and next(places, None) is not None:
            num_calls += await converse(connection, key or f"sk-{next(numbers)}", num_turns, end)
        connection.close()
        return num_calls

    return sum(await asyncio.gather(*(hold_conversations() for _ in range(num_connections))))


def work(
    port: int,
    num_connections: int,
    num_turns: int,
    key: str = "",
    seconds: float = 1e9,
    num_conversations: int = 10**9,
) -> dict[str, float]:
    start = time.perf_counter()
    num_calls = asyncio.run(load(port, key, num_connections, num_turns, seconds, num_conversations))
    passed = time.perf_counter() - start
    return {"calls": num_calls, "calls_per_second": num_calls / min(passed, seconds)}


if __name__ == "__main__":
    answer(work)
