"""Requests that are refused before or by a session: in each dialect the error of that dialect's own clients."""

import logging
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from running_gateways import Behind, RunningGateway, running_gateway
from scripted_sessions import MODEL, OneSession, ScriptedSession

from freerun.errors import ChatError, ContextLengthError, SessionEndedError, TemplateRefusedError, TruncatedError
from freerun.gateway.admission import GatewayLimits

Ask = Callable[..., Any]
"""Asks through a client: (gateway, text, **settings of the client)."""


def ask_chat(gateway: RunningGateway, text: str = "2+2?", model: str = MODEL, **settings: Any) -> Any:
    with gateway.openai(**{"max_retries": 0, **settings}) as client:
        return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])


def ask_responses(gateway: RunningGateway, text: str = "2+2?", model: str = MODEL, **settings: Any) -> Any:
    with gateway.openai(**{"max_retries": 0, **settings}) as client:
        return client.responses.create(model=model, input=text)


def ask_anthropic(gateway: RunningGateway, text: str = "2+2?", model: str = MODEL, **settings: Any) -> Any:
    with gateway.anthropic(**{"max_retries": 0, **settings}) as client:
        message: Any = {"role": "user", "content": text}
        return client.messages.create(model=model, max_tokens=9, messages=[message])


EVERY_DIALECT = pytest.mark.parametrize("ask", [ask_chat, ask_responses, ask_anthropic])
PATHS = {"chat/completions": "openai", "responses": "openai", "messages": "anthropic"}
EVERY_PATH = pytest.mark.parametrize(("path", "vendor"), PATHS.items())


def refusal_of(ask: Ask, gateway: RunningGateway, *arguments: Any, **settings: Any) -> Any:
    """The error of the client: of its vendor's own kind."""
    kind: type[Exception] = anthropic.APIStatusError if ask is ask_anthropic else openai.APIStatusError
    with pytest.raises(kind) as refusal:
        ask(gateway, *arguments, **settings)
    return refusal.value


def message_of(body: dict[str, Any], vendor: str) -> str:
    """The message of an error in the form of a vendor."""
    error = body["error"]
    if vendor == "anthropic":
        assert body["type"] == "error"
        assert error.keys() == {"type", "message"}
    else:
        assert error.keys() == {"message", "type", "param", "code"}
    return str(error["message"])


@EVERY_DIALECT
def test_a_wrong_key_is_unauthorised(behind: Behind, ask: Ask) -> None:
    session = ScriptedSession()
    refusal = refusal_of(ask, behind(session), api_key="wrong")
    assert isinstance(refusal, openai.AuthenticationError | anthropic.AuthenticationError)
    assert "missing or wrong" in refusal.message
    assert session.calls == []


@EVERY_PATH
def test_a_missing_key_is_too(gateway: RunningGateway, path: str, vendor: str) -> None:
    for headers in ({"authorization": ""}, {"authorization": "Basic k"}, {"authorization": "", "x-api-key": ""}):
        with gateway.http(headers=headers) as client:
            answer = client.post(path, json={})
        assert answer.status_code == 401
        assert "missing or wrong" in message_of(answer.json(), vendor)


@EVERY_DIALECT
def test_a_key_may_come_as_either_vendor_sends_it(behind: Behind, ask: Ask) -> None:
    ask(behind(ScriptedSession()))
    for headers in ({"authorization": "bearer k"}, {"authorization": "", "x-api-key": "k"}):
        with behind(ScriptedSession()).http(headers=headers) as client:
            assert client.get("models").status_code == 200


@EVERY_DIALECT
def test_another_model_is_not_found(behind: Behind, ask: Ask) -> None:
    refusal = refusal_of(ask, behind(ScriptedSession()), model="gpt-9")
    assert isinstance(refusal, openai.NotFoundError | anthropic.NotFoundError)
    assert 'ask for "policy"' in refusal.message
    assert "model_not_found" in str(refusal.body)


@EVERY_DIALECT
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ContextLengthError("the conversation has 99 tokens of 64"), "context_length_exceeded"),
        (SessionEndedError("the session has ended"), "session_ended"),
        (TruncatedError("the session is at its limit of 16 turns"), "session_ended"),
        (TemplateRefusedError("the template refuses: no", reason="no"), "template_refused"),
        (ChatError("no tokens were sampled"), "invalid_request"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_session_refuses_is_a_bad_request_that_is_not_repeated(
    behind: Behind, ask: Ask, error: ChatError, code: str
) -> None:
    session = ScriptedSession(error)
    refusal = refusal_of(ask, behind(session), max_retries=2)
    assert isinstance(refusal, openai.BadRequestError | anthropic.BadRequestError)
    assert str(error) in refusal.message
    assert code in str(refusal.body)
    assert len(session.calls) == 1


@EVERY_DIALECT
def test_a_session_that_breaks_is_the_only_server_error_and_tells_no_secrets(
    behind: Behind, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        session = ScriptedSession(KeyError("what the user said"))
        refusal = refusal_of(ask, behind(session), "what the user asked")
    assert refusal.status_code == 500
    assert "the call failed (KeyError)" in refusal.message
    assert "what the user said" not in str(refusal.body)
    [told] = [record.getMessage() for record in caplog.records if record.name.startswith("freerun")]
    assert "KeyError at " in told
    assert "scripted_sessions.py" in told
    for secret in ("what the user said", "what the user asked", "Bearer"):
        assert secret not in "".join(record.getMessage() for record in caplog.records if "freerun" in record.name)


@EVERY_DIALECT
def test_a_body_of_100_mb_is_too_large_and_the_client_gets_to_know(ask: Ask) -> None:
    session = ScriptedSession()
    with running_gateway(OneSession(session), limits=GatewayLimits(max_body_bytes=1 << 20)) as gateway:
        refusal = refusal_of(ask, gateway, "x" * 100_000_000)
        assert refusal.status_code == 413
        assert "the body has more than 1048576 bytes" in refusal.message
        ask(gateway, "x" * 1_000_000)
    assert len(session.calls) == 1


def test_a_large_body_with_a_wrong_key_is_unauthorised(gateway: RunningGateway) -> None:
    with gateway.http(key="wrong") as client:
        assert client.post("chat/completions", content=b"x" * 50_000_000).status_code == 401


@EVERY_PATH
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"no", b"\xff\xfe", b'{"model": "\xff"}', b'{"a": "\\ud800"}', b'{"a":' * 100_000, b"nul\0"],
)
def test_a_body_that_is_no_json_is_a_bad_request(behind: Behind, path: str, vendor: str, body: bytes) -> None:
    with behind(ScriptedSession()).http() as client:
        answer = client.post(path, content=body)
    assert answer.status_code == 400
    assert message_of(answer.json(), vendor).startswith(("the body is not JSON", "the body is nested too deeply"))


@EVERY_PATH
@pytest.mark.parametrize("body", ["[]", "1", "null", '"text"', "{}", '{"model": 1}', '{"model": "policy"}'])
def test_json_of_another_shape_is_a_bad_request(behind: Behind, path: str, vendor: str, body: str) -> None:
    with behind(ScriptedSession()).http() as client:
        answer = client.post(path, content=body)
    assert answer.status_code == 400
    assert message_of(answer.json(), vendor).startswith("the body is not as expected: ")


@EVERY_PATH
def test_tools_that_are_nested_too_deeply_are_a_bad_request(behind: Behind, path: str, vendor: str) -> None:
    deep: Any = {}
    for _ in range(200):
        deep = {"properties": deep}
    tool = {
        "chat/completions": {"type": "function", "function": {"name": "f", "parameters": deep}},
        "responses": {"type": "function", "name": "f", "parameters": deep},
        "messages": {"name": "f", "input_schema": deep},
    }[path]
    message = {"role": "user", "content": "2+2?"}
    with behind(ScriptedSession()).http() as client:
        answer = client.post(path, json={"model": MODEL, "messages": [message], "input": "2+2?", "tools": [tool]})
    assert answer.status_code == 400
    assert "nested more than 64 levels deep" in message_of(answer.json(), vendor)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "0.0.0.0", "[", ""])
@EVERY_PATH
def test_on_loopback_another_host_is_forbidden(gateway: RunningGateway, path: str, vendor: str, host: str) -> None:
    with gateway.http(headers={"host": host}) as client:
        answer = client.post(path, json={})
    assert answer.status_code == 403
    assert "use 127.0.0.1 or localhost" in message_of(answer.json(), vendor)


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "[::1]:80", "127.0.0.1"])
def test_every_name_of_loopback_is_served(gateway: RunningGateway, host: str) -> None:
    with gateway.http(headers={"host": host}) as client:
        assert client.get("models").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "vendor", "status"),
    [
        ("GET", "chat/completions", "openai", 405),
        ("POST", "completions", "openai", 404),
        ("POST", "feedback", "openai", 404),
        ("POST", "messages/count_tokens", "anthropic", 404),
        ("DELETE", "messages", "anthropic", 405),
        ("GET", "%ff%00", "openai", 404),
        ("GET", "models/", "openai", 404),
    ],
)
def test_other_paths_and_methods_are_not_found(
    gateway: RunningGateway, method: str, path: str, vendor: str, status: int
) -> None:
    with gateway.http() as client:
        answer = client.request(method, path, json={})
    assert answer.status_code == status
    assert message_of(answer.json(), vendor)


def test_both_vendors_clients_list_the_model(gateway: RunningGateway) -> None:
    with gateway.openai() as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).owned_by == "freerun"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other/model")
    with gateway.anthropic() as anthropics:
        assert [model.display_name for model in anthropics.models.list()] == [MODEL]


def test_the_sampling_settings_are_the_recipes_and_that_is_said(
    behind: Behind, caplog: pytest.LogCaptureFixture
) -> None:
    with running_gateway(OneSession(ScriptedSession())) as gateway, gateway.http() as client:
        question = {"model": MODEL, "messages": [{"role": "user", "content": "2+2?"}]}
        asked: Any
        for asked in ({"temperature": 0.7, "top_p": 0.9, "min_p": 0}, {"temperature": 0.1}, {"temperature": 0.2}):
            answer = client.post("chat/completions", json={**question, **asked})
            assert answer.headers["x-freerun-sampling"] == "temperature=0.7, top_p=0.9, top_k=20"
    told = [record.getMessage() for record in caplog.records if record.name.startswith("freerun")]
    assert told == [
        "a client asks for temperature=0.1; replies are sampled with temperature=0.7, top_p=0.9, top_k=20"
    ]
