"""A user's episode that does whatever the task tells it to, the worst included."""

import asyncio
import ctypes
import json
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from freerun.errors import TruncatedError
from freerun.rollout.episode import Policy, Task

Action = Callable[[Task, Policy], Awaitable[Any]]


async def episode(task: Task, policy: Policy) -> Any:
    return await ACTIONS[task.text](task, policy)


async def talk(task: Task, policy: Policy) -> float:
    """Three turns; the reward is how many of them were answered with a y."""
    chat, score = policy.chat(), 0.0
    for question in ("a?", "b?", "c?"):
        reply = await chat.say(question)
        score += "y" in reply.text
    return score


async def talk_without_end(task: Task, policy: Policy) -> float:
    chat, score = policy.chat(), 0.0
    try:
        while True:
            await chat.say("more?")
            score += 1
    except TruncatedError:
        return score


async def grade(task: Task, policy: Policy) -> float:
    reply = await policy.chat().say("a?")
    return await task.grade(f"{reply.text}!")


async def tell(task: Task, policy: Policy) -> float:
    """All that the task says must be what the test gave it."""
    await policy.chat().say("a?")
    assert (task.answer, task.row, task.key, task.ordinal) == ("42", {"level": 3}, "row 7", 7)
    assert task.settings == {"size": 7}
    return task.random.random() + task.sample


async def sleep(task: Task, policy: Policy) -> float:
    await policy.chat().say("a?")
    await asyncio.sleep(1000)
    return 1.0


async def sleep_without_a_call(task: Task, policy: Policy) -> float:
    await asyncio.sleep(1000)
    return 1.0


async def score_when_time_is_over(task: Task, policy: Policy) -> float:
    await policy.chat().say("a?")
    try:
        await asyncio.sleep(1000)
    except TruncatedError:
        return 0.25
    return 1.0


def after_a_call(act: Callable[[], Any]) -> Action:
    async def action(task: Task, policy: Policy) -> Any:
        await policy.chat().say("a?")
        return act()

    return action


def without_a_call(act: Callable[[], Any]) -> Action:
    async def action(task: Task, policy: Policy) -> Any:
        return act()

    return action


async def wait_for_file(task: Task, policy: Policy) -> float:
    """Between two turns, so that something can happen meanwhile; every beginning leaves a mark."""
    chat = policy.chat()
    await chat.say("a?")
    with Path("begun").open("a") as marks:
        marks.write("x")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    await chat.say("b?")
    return 1.0


async def fork_that_comes_back(task: Task, policy: Policy) -> float:
    pid = os.fork()
    reply = await policy.chat().say("a?" if pid else "never asked")
    if pid == 0:
        return 99.0
    await asyncio.to_thread(os.waitpid, pid, 0)
    return float("y" in reply.text)


async def exit_in_a_task(task: Task, policy: Policy) -> float:
    async def leave() -> None:
        sys.exit(3)

    background = asyncio.create_task(leave())
    reply = await policy.chat().say("a?")
    del background
    return float("y" in reply.text)


async def leave_threads(task: Task, policy: Policy) -> float:
    """Its tools hang beyond their time-out: a thread cannot be killed."""

    def hang() -> str:
        """Hang."""
        time.sleep(1000)
        return ""

    await policy.chat().say("a?")
    from freerun.chat.messages import ToolCall
    from freerun.rollout.tools import as_tools

    calls = [ToolCall(id=str(n), name="hang", arguments="{}") for n in range(8)]
    answers = await policy.tools.answers(as_tools([hang]), calls)
    return float(all("took longer" in answer.content for answer in answers))


async def overlap(task: Task, policy: Policy) -> float:
    replies = await asyncio.gather(*(policy.chat().say(f"{n}?") for n in range(3)))
    return float(len({reply.call for reply in replies}))


async def ask_over_http(task: Task, policy: Policy) -> float:
    """What an agent does that knows nothing of freerun."""
    body = {"model": policy.name, "messages": [{"role": "user", "content": "a?"}]}
    headers = {"Authorization": f"Bearer {policy.api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{policy.base_url}/chat/completions", json.dumps(body).encode(), headers)
    with await asyncio.to_thread(urllib.request.urlopen, request) as answer:
        said = json.load(answer)["choices"][0]["message"]["content"]
    return float("y" in said)


def die_once() -> float:
    marker = Path("died")
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def fail_once() -> float:
    marker = Path("failed")
    if not marker.exists():
        marker.touch()
        raise ConnectionError("the environment is away")
    return 1.0


def fail() -> float:
    raise ConnectionError("the environment is away for good")


ACTIONS: dict[str, Action] = {
    "talk": talk,
    "talk without end": talk_without_end,
    "grade": grade,
    "tell": tell,
    "sleep": sleep,
    "sleep without a call": sleep_without_a_call,
    "score when time is over": score_when_time_is_over,
    "wait for file": wait_for_file,
    "fork that comes back": fork_that_comes_back,
    "exit in a task": exit_in_a_task,
    "leave threads": leave_threads,
    "overlap": overlap,
    "ask over http": ask_over_http,
    "none": after_a_call(lambda: None),
    "text": after_a_call(lambda: "1"),
    "no call": without_a_call(lambda: 1.0),
    "raise": after_a_call(lambda: ACTIONS["missing"]),
    "sys.exit": after_a_call(lambda: sys.exit(3)),
    "os._exit": after_a_call(lambda: os._exit(3)),
    "segfault": after_a_call(lambda: ctypes.string_at(0)),
    "block": after_a_call(lambda: time.sleep(1000)),
    "block without a call": without_a_call(lambda: time.sleep(1000)),
    "busy in C": after_a_call(lambda: re.match(r"(a+)+$", "a" * 60 + "b")),
    "stop": after_a_call(lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "die once": after_a_call(die_once),
    "fail once": after_a_call(fail_once),
    "fail": after_a_call(fail),
}


def not_async(task: Task, policy: Policy) -> float:
    return 1.0


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def without_annotations(a, b):  # type: ignore[no-untyped-def]
    """A tool that nobody can describe."""
    return a + b
