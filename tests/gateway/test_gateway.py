"""The life of a gateway: addresses and keys, clients that wait, go away or ask again, and its end."""

import asyncio
import contextlib
import json
import socket
from typing import Any

import openai
import pytest
from running_gateways import SAMPLING, RunningGateway, running_gateway
from scripted_sessions import MODEL, OneSession, ScriptedSession

from freerun.errors import ConfigError, SessionEndedError
from freerun.gateway import connections
from freerun.gateway.admission import GatewayLimits
from freerun.gateway.feedback import Feedback
from freerun.gateway.server import Gateway
from freerun.gateway.sessions import SessionKeys

QUESTION: Any = [{"role": "user", "content": "2+2?"}]
QUICK_PINGS = GatewayLimits(ping_seconds=0.01)


def ask(gateway: RunningGateway, *, key: str = "k") -> str | None:
    with gateway.openai(api_key=key, max_retries=0) as client:
        return client.chat.completions.create(model=MODEL, messages=QUESTION).choices[0].message.content


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.1.2.3:80", "example.com:80"])
def test_a_public_address_needs_a_key(address: str) -> None:
    with pytest.raises(ConfigError, match=r"can be reached from other machines and needs a key; give one"):
        Gateway(SessionKeys(MODEL), sampling=SAMPLING, address=address)


def test_a_key_that_no_header_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="printable ASCII"):
        Gateway(SessionKeys(MODEL), sampling=SAMPLING, key="schlüssel")


def test_a_public_gateway_serves_any_name_and_only_keys_made_from_its_own() -> None:
    sessions = SessionKeys(MODEL, key="open-sesame")
    stranger, own = SessionKeys(MODEL).add(ScriptedSession()), sessions.add(ScriptedSession("4"))
    assert own.startswith("open-sesame.")
    with running_gateway(sessions, address="0.0.0.0:0", key="open-sesame") as gateway:
        port = gateway.base_url.rpartition(":")[2].removesuffix("/v1")
        gateway.base_url = f"http://127.0.0.1:{port}/v1"
        assert ask(gateway, key=own) == "4"
        with gateway.http(key=own, headers={"host": "freerun.example"}) as client:
            assert client.get("models").status_code == 200
        for wrong in (stranger, "open-sesame", "open-sesame.", "open-sesam", own + "x", own.lower()):
            with pytest.raises(openai.AuthenticationError):
                ask(gateway, key=wrong)


def test_a_shared_key_is_checked_as_a_whole() -> None:
    anything = OneSession(ScriptedSession("4"), keys=("secret", "secretive", "x"))
    with running_gateway(anything, key="secret") as gateway:
        assert ask(gateway, key="secret") == "4"
        for wrong in ("secretive", "x"):
            with pytest.raises(openai.AuthenticationError):
                ask(gateway, key=wrong)


def test_each_session_has_a_key_and_an_ended_one_is_told_so() -> None:
    sessions = SessionKeys(MODEL)
    one, two = sessions.add(ScriptedSession("one")), sessions.add(ScriptedSession("two"))
    with running_gateway(sessions) as gateway:
        assert (ask(gateway, key=one), ask(gateway, key=two)) == ("one", "two")
        gateway.soon(sessions.remove, one)
        with pytest.raises(openai.BadRequestError, match="has ended") as refusal:
            ask(gateway, key=one)
        assert refusal.value.code == "session_ended"
        assert ask(gateway, key=two) == "two"


def test_keys_of_long_ended_sessions_are_forgotten() -> None:
    sessions = SessionKeys(MODEL)
    keys = [sessions.add(ScriptedSession()) for _ in range(5000)]
    for key in keys:
        sessions.remove(key)
        sessions.remove(key)
    assert [sessions.accepts(key) for key in (keys[0], keys[-1])] == [False, True]
    with pytest.raises(SessionEndedError):
        sessions.find(keys[-1], None)  # type: ignore[arg-type]


def test_a_socket_listens_when_open_returns() -> None:
    async def scenario() -> None:
        gateway = Gateway(OneSession(ScriptedSession()), sampling=SAMPLING)
        url = gateway.open()
        assert gateway.open() == url
        port = int(url.split(":")[2].removesuffix("/v1"))
        with socket.create_connection(("127.0.0.1", port)):
            await gateway.close()

    asyncio.run(scenario())


def test_a_gateway_that_never_opened_closes() -> None:
    asyncio.run(Gateway(SessionKeys(MODEL), sampling=SAMPLING).close())


def test_a_stream_that_waits_sends_comments() -> None:
    session = ScriptedSession("It is 4.")
    session.may_answer.clear()
    with running_gateway(OneSession(session), limits=QUICK_PINGS) as gateway, gateway.http() as client:
        body = {"model": MODEL, "messages": QUESTION, "stream": True}
        with client.stream("POST", "chat/completions", json=body) as stream:
            lines = stream.iter_lines()
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert [next(lines) for _ in range(6)] == [": waiting for the policy", ""] * 3
            gateway.soon(session.may_answer.set)
            events = [line for line in lines if line.startswith("data")]
    assert '"content":"It is 4."' in events[1]
    assert events[-1] == "data: [DONE]"


@pytest.mark.parametrize("vendor", ["chat", "responses", "anthropic"])
def test_an_error_in_a_stream_that_has_begun_reaches_the_client(vendor: str) -> None:
    session = ScriptedSession(SessionEndedError("the session has ended"))
    session.may_answer.clear()
    with running_gateway(OneSession(session), limits=QUICK_PINGS) as gateway:
        stream: Any
        with gateway.openai() as client, gateway.anthropic() as anthropics, contextlib.ExitStack() as late:
            if vendor == "chat":
                stream = client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
            elif vendor == "responses":
                stream = client.responses.create(model=MODEL, input="2+2?", stream=True)
            else:
                stream = anthropics.messages.create(model=MODEL, max_tokens=9, messages=QUESTION, stream=True)
            late.callback(stream.close)
            gateway.soon(session.may_answer.set)
            with pytest.raises(Exception, match="the session has ended"):
                list(stream)


def test_a_call_goes_on_when_its_client_has_gone() -> None:
    session = ScriptedSession("4")
    session.may_answer.clear()
    with running_gateway(OneSession(session)) as gateway:
        with connected(gateway) as connection:
            body = json.dumps({"model": MODEL, "messages": QUESTION})
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
            connection.sendall(f"{head}authorization: Bearer k\r\n\r\n{body}".encode())
            gateway.run(until(lambda: session.calls))
        assert gateway.gateway.num_calls == 1
        gateway.soon(session.may_answer.set)
        gateway.run(until(lambda: gateway.gateway.num_calls == 0))


async def until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_closing_answers_the_calls_in_flight() -> None:
    session = ScriptedSession()
    session.may_answer.clear()
    gateway = RunningGateway(OneSession(session))

    async def scenario() -> str:
        async with gateway.async_openai(max_retries=0) as client:
            call = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=QUESTION))
            while not session.calls:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(gateway.close)
            with pytest.raises(openai.InternalServerError) as refusal:
                await call
            return str(refusal.value)

    assert "the call was given up: its session or the gateway has ended" in asyncio.run(scenario())


def test_a_policy_that_never_answers_is_a_time_out() -> None:
    session = ScriptedSession()
    session.may_answer.clear()
    with running_gateway(OneSession(session), limits=GatewayLimits(call_seconds=0.05)) as gateway:
        with pytest.raises(openai.InternalServerError, match=r"did not answer within 0.05 s") as refusal:
            ask(gateway)
        assert refusal.value.status_code == 504


def test_a_body_that_does_not_arrive_is_a_time_out() -> None:
    with running_gateway(OneSession(ScriptedSession()), limits=GatewayLimits(body_seconds=0.05)) as gateway:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\n"
        with connected(gateway) as connection:
            connection.sendall(f"{head}content-length: 9\r\n\r\n{{".encode())
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("first", ["", "GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"])
def test_headers_that_do_not_arrive_end_the_connection(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    with running_gateway(OneSession(ScriptedSession())) as gateway, connected(gateway) as connection:
        if first:
            connection.sendall(first.encode())
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 401 ")
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: ")
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1 << 16) == b""


def test_headers_that_do_not_end_end_the_connection() -> None:
    with running_gateway(OneSession(ScriptedSession())) as gateway, connected(gateway) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: " + b"x" * 1_000_000)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1 << 16) == b""


def connected(gateway: RunningGateway) -> socket.socket:
    port = int(gateway.base_url.split(":")[2].removesuffix("/v1"))
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def test_feedback_rates_an_answer_by_its_id() -> None:
    rated: list[Feedback] = []

    def give(feedback: Feedback) -> bool:
        rated.append(feedback)
        return feedback.reply_id == "0x0"

    with running_gateway(OneSession(ScriptedSession("4")), feedback=give) as gateway, gateway.http() as client:
        answer = client.post("chat/completions", json={"model": MODEL, "messages": QUESTION}).json()
        assert client.post("feedback", json={"id": answer["id"], "reward": 1}).json()["reward"] == 1.0
        assert client.post("feedback", json={"id": "msg_9x9", "reward": -0.5}).status_code == 404
        for body in ({}, {"id": 1, "reward": 1}, {"id": "x", "reward": 1}, {"id": answer["id"], "reward": "good"}):
            assert client.post("feedback", json=body).status_code == 400
        assert client.post("feedback", content=b'{"id": "resp_0x0", "reward": 1e999}').status_code == 400
    assert rated == [
        Feedback(key="k", reply_id="0x0", reward=1.0),
        Feedback(key="k", reply_id="9x9", reward=-0.5),
    ]
