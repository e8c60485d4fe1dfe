"""Damaged requests over real sockets: every answer is below 500 and in its dialect's form, and nothing is left."""

import asyncio
import gc
import json
import random
import weakref
from collections import Counter

import pytest
from hostile_requests import HostileRequest, hostile_request
from running_gateways import RunningGateway, running_gateway
from scripted_sessions import MODEL, ScriptedSession

from freerun.chat.messages import ChatCall, Message
from freerun.errors import ContextLengthError, SessionEndedError
from freerun.gateway.admission import GatewayLimits

AT_ONCE = 24
LIMITS = GatewayLimits(max_body_bytes=1 << 20, body_seconds=2.0, ping_seconds=0.02)


class NewSessions:
    """A new session for every call; only the gateway knows it."""

    model_name = MODEL

    def __init__(self) -> None:
        self.made: list[weakref.ref[ScriptedSession]] = []

    def accepts(self, key: str) -> bool:
        return key == "k"

    def find(self, key: str, call: ChatCall) -> ScriptedSession:
        # Errors that were made earlier would hold the sessions that raised them, by their tracebacks.
        lines = (
            "4",
            Message(role="assistant", content="\u2028"),
            ContextLengthError("long"),
            SessionEndedError("over"),
        )
        session = ScriptedSession(lines[len(self.made) % len(lines)])
        if len(self.made) % 7 == 0:
            session.may_answer.clear()
            asyncio.get_running_loop().call_later(0.1, session.may_answer.set)
        self.made.append(weakref.ref(session))
        return session


async def answer_to(request: HostileRequest, port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request.data)
        if request.ending == "leave":
            return b""
        if request.ending == "shut":
            writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def answers_to(requests: list[HostileRequest], gateway: RunningGateway) -> list[bytes]:
    port = int(gateway.base_url.split(":")[2].removesuffix("/v1"))
    places = asyncio.Semaphore(AT_ONCE)

    async def answer(request: HostileRequest) -> bytes:
        async with places:
            return await answer_to(request, port)

    return [*await asyncio.gather(*map(answer, requests))]


def status_of(request: HostileRequest, answer: bytes) -> int:
    """The status of an answer in the right form; 0 if there was none."""
    if not answer:
        assert request.ending != "read" or not request.is_http, request
        return 0
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    status = int(head.split(b" ")[1])
    if status >= 400 and b"application/json" in head:
        error = json.loads(body)
        is_anthropic = request.path == "/v1/messages"
        assert error["error"].keys() == (
            {"type", "message"} if is_anthropic else {"message", "type", "param", "code"}
        )
    return status


def send_hostile_requests(number: int, *, seed: int) -> Counter[int]:
    """How often each status came; nothing is left of the requests then."""
    rng = random.Random(seed)
    requests = [hostile_request(rng) for _ in range(number)]
    sessions = NewSessions()
    with running_gateway(sessions, limits=LIMITS) as gateway:
        answers = asyncio.run(answers_to(requests, gateway))
        gateway.run(until_idle(gateway))
        gc.collect()
        assert [made for made in sessions.made if made() is not None] == []
    return Counter(map(status_of, requests, answers))


async def until_idle(gateway: RunningGateway) -> None:
    while gateway.gateway.num_calls:
        await asyncio.sleep(0.01)


def test_no_request_is_a_server_error_and_none_leaves_anything_behind() -> None:
    statuses = send_hostile_requests(400, seed=0)
    assert max(statuses) < 500
    assert {200, 400, 401, 403, 404} <= statuses.keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_nor_is_any_of_five_thousand(seed: int) -> None:
    statuses = send_hostile_requests(1000, seed=seed)
    assert max(statuses) < 500
    assert {200, 400, 401, 403, 404, 413} <= statuses.keys()
