"""`freerun chat`: a conversation of one user with the policy, line by line.

Lines come from a stream and replies go to a function: this module knows neither the terminal nor HTTP.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from freerun.chat.messages import CallSampling, ChatCall, Message
from freerun.errors import ChatError
from freerun.processes.supervision import Supervisor
from freerun.serving.serve import until_stopped
from freerun.serving.served_model import ServedPolicy, ServeJob, open_policy

RESET, QUIT = "/reset", "/quit"


@dataclass(frozen=True)
class Screen:
    """The user's side of a chat."""

    lines: Callable[[], AsyncIterator[str]]
    """The user's lines, until there are no more."""
    show_reply: Callable[[str], None]
    show_notice: Callable[[str], None]
    generating: Callable[[], AbstractContextManager[object]]
    """Shows that the policy is generating."""


def run_chat(job: ServeJob, screen: Screen, *, system: str, sampling: CallSampling) -> None:
    """Chat until the lines end, /quit or Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="freerun-chat-") as logs:
        asyncio.run(until_stopped(_chat(job, Path(logs), screen, system, sampling)))


async def _chat(job: ServeJob, logs: Path, screen: Screen, system: str, sampling: CallSampling) -> None:
    async with open_policy(job, logs) as policy:
        background = Supervisor()
        try:
            await policy.start()
            background.start(policy.wait_for_loss())
            await background.watch(_converse(policy, screen, system, sampling))
        finally:
            await background.close()


async def _converse(policy: ServedPolicy, screen: Screen, system: str, sampling: CallSampling) -> None:
    opening = (Message(role="system", content=system),) if system else ()
    session, said = policy.open_session(), opening
    async for line in screen.lines():
        text = line.strip()
        if text == QUIT:
            return
        if text == RESET:
            session.end()
            session, said = policy.open_session(), opening
            screen.show_notice("the conversation begins again")
        elif text:
            asked = (*said, Message(role="user", content=text))
            try:
                with screen.generating():
                    [reply] = await session.reply(ChatCall(messages=asked, sampling=sampling))
            except ChatError as error:
                screen.show_notice(f"{error}; {RESET} begins again")
                continue
            said = (*asked, reply.message)
            screen.show_reply(reply.text)
            if reply.finish_reason == "length":
                screen.show_notice("cut off by sampling.max_completion_tokens or the longest conversation")
