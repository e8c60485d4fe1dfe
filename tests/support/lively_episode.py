"""Episodes for runs in miniature, which even a random model pleases now and then."""

import asyncio
import os
import time
from pathlib import Path

from freerun.rollout.episode import Policy, Task


def digits(text: str) -> int:
    return sum(character.isdigit() for character in text)


def block() -> None:
    time.sleep(1000)


async def episode(task: Task, policy: Policy) -> float:
    """One to four turns, the same for the whole group; more digits per turn are better."""
    chat, num_turns = policy.chat(), 1 + task.random.randrange(4)
    score = digits((await chat.say(task.text)).text)
    for _ in range(num_turns - 1):
        score += digits((await chat.say("12,8>")).text)
    return score / num_turns / 2 - 1.0


async def slow_episode(task: Task, policy: Policy) -> float:
    """As `episode`, but slow enough that something can happen meanwhile."""
    await asyncio.sleep(0.05)
    reward = await episode(task, policy)
    await asyncio.sleep(0.05)
    return reward


async def graded_episode(task: Task, policy: Policy) -> float:
    """The second answer is what the run's grader judges."""
    chat = policy.chat()
    await chat.say(task.text)
    return await task.grade((await chat.say("12,8>")).text)


async def branching_episode(task: Task, policy: Policy) -> float:
    """Two conversations that begin alike: two sequences of one sample."""
    chats = [policy.chat(), policy.chat()]
    replies = await asyncio.gather(*(chat.say(task.text) for chat in chats))
    replies += [await chat.say("12,8>") for chat in chats]
    return sum(digits(reply.text) for reply in replies) / 16 - 1.0


async def broken_episode(task: Task, policy: Policy) -> float:
    await policy.chat().say(task.text)
    raise ConnectionError("this environment is never there")


async def unruly_episode(task: Task, policy: Policy) -> float:
    """Now and then it exits, forks, raises, returns nonsense or blocks; once each, marked by files."""
    kinds = [None, "exit", "fork", "raise", "nonsense", "block"]
    kind = kinds[task.ordinal] if task.sample == 0 and 0 <= task.ordinal < len(kinds) else None
    reward = await episode(task, policy)
    marker = Path(str(task.settings["marks"])) / str(kind)
    if kind is None or marker.exists():
        return reward
    marker.touch()
    if kind == "exit":
        os._exit(3)
    if kind == "fork" and os.fork() == 0:
        return 1000.0
    if kind == "raise":
        raise ConnectionError("this environment was away")
    if kind == "block":
        block()
    return "nonsense" if kind == "nonsense" else reward  # type: ignore[return-value]
