"""Our gateway in front of a simulated engine: real HTTP, sessions, template and tokenizer; replies cost nothing.

    gateway_server.py MODEL PORT REPLY

Every key has its own session. The newest 10,000 stay open, as in a worker with that many sessions.
"""

import asyncio
import sys
from pathlib import Path

import numpy as np
from serving import report_when_up

from freerun.chat.messages import ChatCall
from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, SampleRequest, SessionLimits
from freerun.data.tokenizer import Tokenizer
from freerun.gateway.server import Gateway
from freerun.processes.garbage import search_less_often
from freerun.types import Completion, Sampling, Span

MAX_SESSIONS = 10_000
LIMITS = SessionLimits(max_turns=100, max_session_tokens=32_768, max_completion_tokens=1024)


class SimulatedEngine:
    """Says the same at once, as an engine that takes no time."""

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        ids = np.append(tokenizer.encode(text, add_special_tokens=False), tokenizer.stop_token_ids[0])
        self._completion = Completion(
            token_ids=ids.astype(np.int32),
            logprobs=np.full(len(ids), -1.0, np.float32),
            spans=(Span(0, len(ids)),),
            finish_reason="stop",
            text=text,
        )

    async def __call__(self, request: SampleRequest) -> tuple[Completion, ...]:
        return (self._completion,) * request.num_samples


class SessionPerKey:
    """A session for every key, made when it is first used."""

    model_name = "policy"

    def __init__(self, renderer: Renderer, engine: SimulatedEngine) -> None:
        self._renderer = renderer
        self._engine = engine
        self._sessions: dict[str, ChatSession] = {}

    def accepts(self, key: str) -> bool:
        return key.startswith("sk-")

    def find(self, key: str, call: ChatCall) -> ChatSession:
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = ChatSession(self._renderer, self._engine, LIMITS)
            if len(self._sessions) > MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        return session


async def serve(model: str, port: str, reply: str) -> None:
    tokenizer = Tokenizer.load(Path(model))
    sessions = SessionPerKey(Renderer(tokenizer, use_chat_template=True), SimulatedEngine(tokenizer, reply))
    gateway = Gateway(sessions, sampling=Sampling(max_completion_tokens=1024), address=f"127.0.0.1:{port}")
    await gateway.start()
    report_when_up(int(port))
    await asyncio.Event().wait()


if __name__ == "__main__":
    search_less_often()  # as an agent worker
    asyncio.run(serve(*sys.argv[1:]))
