"""`freerun chat`: talk to a model or a run's checkpoint, in the terminal or line by line from a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from freerun.cli.arguments import Parser
from freerun.cli.streams import harmless
from freerun.config.values import MAX_TEMPERATURE
from freerun.errors import FreerunError

if TYPE_CHECKING:
    from freerun.serving.chat import Screen

_READ_BYTES = 65536
EPILOG = """\
MODEL_OR_RUN is a model directory, or a run (its newest checkpoint, sampled as in its recipe).

/reset begins the conversation again, /quit or Ctrl-D ends it. If the input is not a terminal, each line of it is
one message. --temperature 0 always takes the most likely token. Change [sampling] or the engine with
--section.key value; "freerun train --help" lists the keys.

examples:
  freerun chat models/smollm2
  freerun chat models/smollm2 --system "Answer in one word." --temperature 0
  echo "What is 7*8?" | freerun chat runs/times-tables
"""


def run(arguments: Sequence[str]) -> int:
    args, overrides = _parser().parse_with_keys(arguments)
    if args.temperature is not None and not 0 <= args.temperature <= MAX_TEMPERATURE:
        raise FreerunError(f"--temperature {args.temperature:g} must be from 0 to {MAX_TEMPERATURE:g}")

    from freerun.chat.messages import CallSampling
    from freerun.serving.chat import run_chat
    from freerun.serving.served_model import make_serve_job

    job = make_serve_job(args.target, overrides, version=args.version)
    print(f"starting {job.model}", file=sys.stderr)
    system = job.recipe.data.system_prompt if args.system is None else args.system
    run_chat(job, _screen(), system=system, sampling=CallSampling(temperature=args.temperature))
    return 0


def _screen() -> Screen:
    from rich.console import Console

    from freerun.serving.chat import Screen

    console = Console(stderr=True)
    is_person = sys.stdin is not None and sys.stdin.isatty()

    def show_reply(text: str) -> None:
        print(harmless(text), flush=True)

    def show_notice(text: str) -> None:
        print(f"({harmless(text)})", file=sys.stderr, flush=True)

    def generating() -> contextlib.AbstractContextManager[object]:
        return console.status("generating") if is_person else contextlib.nullcontext()

    return Screen(lambda: _lines(prompt="> " if is_person else ""), show_reply, show_notice, generating)


async def _lines(*, prompt: str) -> AsyncIterator[str]:
    """Yield the lines of standard input.

    They are read by a thread that is never waited for: Ctrl-C must end the chat while it waits for a line.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed: the chat has ended.
            while piece := os.read(0, _READ_BYTES):
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            loop.call_soon_threadsafe(pieces.put_nowait, b"")

    threading.Thread(target=read, daemon=True).start()
    rest, is_open = b"", True
    while is_open:
        if b"\n" not in rest:
            print(prompt, end="", flush=True)
        while b"\n" not in rest and is_open:
            piece = await pieces.get()
            rest, is_open = rest + piece, bool(piece)
        *lines, rest = rest.split(b"\n") if is_open else (*rest.split(b"\n"), b"")
        for line in lines:
            yield line.decode(errors="replace")


def _parser() -> Parser:
    description = "Talk to a model in the terminal."
    usage = "MODEL_OR_RUN [--system TEXT] [--temperature X] [--version N] [--section.key value ...]"
    parser = Parser("freerun chat", description, EPILOG, usage=usage)
    take = parser.take
    take("target", "MODEL_OR_RUN", "model directory or run")
    take("--system", "TEXT", "system message; default: data.system_prompt of the run", type=str)
    take("--temperature", "X", "default: sampling.temperature", type=float)
    parser.take_version()
    return parser
