"""An environment in a process of its own, `python echo_environment.py PORT`, and the episode that plays in it."""

import asyncio
import sys

from freerun.rollout.episode import Policy, Task


async def episode(task: Task, policy: Policy) -> float:
    """The server says what to answer, hears the answer and gives the reward; it is needed all the time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", task.settings["port"])
    try:
        question = (await read_line(reader)) or task.text
        reply = await policy.chat().say(question)
        await asyncio.sleep(0.02)
        writer.write(f"{len(reply.text)}\n".encode())
        await writer.drain()
        return float(await read_line(reader))
    finally:
        writer.close()


async def read_line(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    if not line:
        raise ConnectionError("the environment has hung up")
    return line.decode().strip()


async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        writer.write(b"^12,18>\n")
        await writer.drain()
        length = int(await reader.readline() or b"0")
        writer.write(f"{length / 6 - 1}\n".encode())
        await writer.drain()
    finally:
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(play, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
