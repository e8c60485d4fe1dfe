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
from scripted_policy import ScriptedPolicy
from scripted_sessions import MODEL
from served_sessions import small_renderer
from written_tool_calls import hermes

from freerun.chat.messages import ChatCall
from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, SessionLimits
from freerun.gateway.admission import GatewayLimits
from freerun.gateway.content import MAX_REPLIES

AT_ONCE = 24
LIMITS = GatewayLimits(max_body_bytes=1 << 20, body_seconds=2.0, ping_seconds=0.02)


SAID = (
    "It is 4.",
    "\u2028 \x85 \N{PILE OF POO}",
    hermes([("add", {"a": 1})]),
    "<tool_call>{",
    "<think>hm</think>4",
    "4...",
)


class NewSessions:
    """A new session for every call; only the gateway knows it."""

    model_name = MODEL

    def __init__(self, renderer: Renderer) -> None:
        self.made: list[weakref.ref[ChatSession]] = []
        self._renderer = renderer

    def accepts(self, key: str) -> bool:
        return key == "k"

    def find(self, key: str, call: ChatCall) -> ChatSession:
        policy = ScriptedPolicy(self._renderer.tokenizer, [SAID[len(self.made) % len(SAID)]] * MAX_REPLIES)
        if len(self.made) % 7 == 0:
            policy.may_answer.clear()
            asyncio.get_running_loop().call_later(0.1, policy.may_answer.set)
        limits = SessionLimits(max_turns=MAX_REPLIES, max_session_tokens=4000, max_completion_tokens=50)
        session = ChatSession(self._renderer, policy, limits)
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


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return small_renderer(tmp_path_factory.mktemp("model"))


def send_hostile_requests(renderer: Renderer, number: int, *, seed: int) -> Counter[int]:
    """How often each status came; nothing is left of the requests then."""
    rng = random.Random(seed)
    requests = [hostile_request(rng) for _ in range(number)]
    sessions = NewSessions(renderer)
    with running_gateway(sessions, limits=LIMITS) as gateway:
        answers = asyncio.run(answers_to(requests, gateway))
        gateway.run(until_idle(gateway))
        gc.collect()
        assert [made for made in sessions.made if made() is not None] == []
    return Counter(map(status_of, requests, answers))


async def until_idle(gateway: RunningGateway) -> None:
    while gateway.gateway.num_calls:
        await asyncio.sleep(0.01)


def test_no_request_is_a_server_error_and_none_leaves_anything_behind(renderer: Renderer) -> None:
    statuses = send_hostile_requests(renderer, 250, seed=0)
    assert max(statuses) < 500
    assert {200, 400, 401, 403, 404} <= statuses.keys()


@pytest.mark.bulk
@pytest.mark.parametrize("seed", range(1, 6))
def test_nor_is_any_of_five_thousand(renderer: Renderer, seed: int) -> None:
    statuses = send_hostile_requests(renderer, 1000, seed=seed)
    assert max(statuses) < 500
    assert {200, 400, 401, 403, 404, 413} <= statuses.keys()
