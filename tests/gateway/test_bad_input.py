"""What clients get wrong, in each dialect: an error in its form, and a session that loses nothing."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from running_gateways import RunningGateway, running_gateway
from scripted_sessions import MODEL
from served_sessions import ServedSession, small_renderer
from tokenizer_kinds import byte_level, load

from freerun.chat.rendering import Renderer
from freerun.data.tokenizer import Tokenizer
from freerun.gateway.sessions import SessionKeys
from freerun.model.tiny import make_tiny

PATHS = ("chat/completions", "responses", "messages")
MANY = 100_000_000
REFUSES_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system, please') }}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)

every_path = pytest.mark.parametrize("path", PATHS)
streamed_or_not = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return small_renderer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def keys() -> SessionKeys:
    return SessionKeys(MODEL)


@pytest.fixture(scope="module")
def gateway(keys: SessionKeys) -> Iterator[RunningGateway]:
    with running_gateway(keys) as running:
        yield running


def body_of(path: str, text: str = "2+2?", *, is_streamed: bool, system: str = "", **more: Any) -> dict[str, Any]:
    """A question in the dialect of a path."""
    question = {"role": "user", "content": text}
    body: dict[str, Any] = {"model": MODEL, "stream": is_streamed, **more}
    match path:
        case "chat/completions":
            first = [{"role": "system", "content": system}] if system else []
            return body | {"messages": [*first, question]}
        case "responses":
            return body | {"input": [question]} | ({"instructions": system} if system else {})
        case _:
            return body | {"messages": [question], "max_tokens": 50} | ({"system": system} if system else {})


def assert_refused(answer: httpx2.Response, path: str, *, status: int, code: str, words: str) -> None:
    """In the form of the dialect, although a stream was asked for."""
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert words in error["message"]
    if path == "messages":
        assert answer.json()["type"] == "error"
        assert error.keys() == {"type", "message"}
        assert error["message"].endswith(f"({code})")
    else:
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["code"] == code


def said(answer: httpx2.Response) -> str:
    """All that was answered, as text."""
    assert answer.status_code == 200, answer.text
    return answer.text


@every_path
@streamed_or_not
def test_messages_that_the_template_refuses_get_its_reason_and_the_session_goes_on(
    gateway: RunningGateway, keys: SessionKeys, tmp_path: Path, path: str, is_streamed: bool
) -> None:
    load(tmp_path, byte_level())
    (tmp_path / "chat_template.jinja").write_text(REFUSES_SYSTEM)
    served = ServedSession(keys, Renderer(Tokenizer.load(tmp_path), use_chat_template=True), "It is 4.")
    with gateway.http(key=served.key) as client:
        refused = client.post(path, json=body_of(path, system="Be brief.", is_streamed=is_streamed))
        reason = "refuses messages of (system, user): no system, please; change the messages"
        assert_refused(refused, path, status=400, code="template_refused", words=reason)
        assert "It is 4." in said(client.post(path, json=body_of(path, is_streamed=is_streamed)))
    assert served.sampled_texts() == ["It is 4."]
    assert len(served.policy.requests) == 1


@every_path
@streamed_or_not
def test_characters_that_the_tokenizer_does_not_know_are_the_clients_fault_and_the_session_goes_on(
    gateway: RunningGateway, keys: SessionKeys, tmp_path: Path, path: str, is_streamed: bool
) -> None:
    make_tiny(tmp_path, alphabet="2+?", hidden_size=8, num_layers=1, num_heads=1, num_kv_heads=1)
    served = ServedSession(keys, Renderer(Tokenizer.load(tmp_path), use_chat_template=False), "2+2")
    with gateway.http(key=served.key) as client:
        refused = client.post(path, json=body_of(path, "2+2\u00e9?", is_streamed=is_streamed))
        words = "the model's tokenizer cannot encode the conversation ("
        assert_refused(refused, path, status=400, code="invalid_request", words=words)
        assert str(tmp_path) not in refused.text
        assert "2+2" in said(client.post(path, json=body_of(path, is_streamed=is_streamed)))
    assert served.sampled_texts() == ["2+2"]


@every_path
@streamed_or_not
def test_a_tool_without_a_schema_is_served(
    gateway: RunningGateway, keys: SessionKeys, renderer: Renderer, path: str, is_streamed: bool
) -> None:
    served = ServedSession(keys, renderer, "It is 4.")
    tool: Any = {
        "chat/completions": {"type": "function", "function": {"name": "look"}},
        "responses": {"type": "function", "name": "look"},
        "messages": {"name": "look"},
    }[path]
    with gateway.http(key=served.key) as client:
        assert "It is 4." in said(client.post(path, json=body_of(path, is_streamed=is_streamed, tools=[tool])))


@every_path
@pytest.mark.parametrize("schema", ["{}", 1, ["a"], {"type": {}}, {"properties": 3}], ids=str)
def test_a_schema_that_is_none_is_served_or_refused_and_never_an_error_of_the_server(
    gateway: RunningGateway, keys: SessionKeys, renderer: Renderer, path: str, schema: Any
) -> None:
    served = ServedSession(keys, renderer, "It is 4.")
    tool: Any = {
        "chat/completions": {"type": "function", "function": {"name": "look", "parameters": schema}},
        "responses": {"type": "function", "name": "look", "parameters": schema},
        "messages": {"name": "look", "input_schema": schema},
    }[path]
    with gateway.http(key=served.key) as client:
        answer = client.post(path, json=body_of(path, is_streamed=False, tools=[tool]))
    if isinstance(schema, dict):
        assert "It is 4." in said(answer)
    else:
        assert_refused(answer, path, status=400, code="invalid_request", words="the body is not as expected: ")
        assert served.policy.requests == []


@every_path
@streamed_or_not
@pytest.mark.parametrize("has_length", [True, False], ids=["with its length", "in chunks"])
def test_a_body_of_100_mb_is_too_large(
    gateway: RunningGateway, keys: SessionKeys, renderer: Renderer, path: str, is_streamed: bool, has_length: bool
) -> None:
    served = ServedSession(keys, renderer, "It is 4.")
    body = json.dumps(body_of(path, "x" * MANY, is_streamed=is_streamed)).encode()
    with gateway.http(key=served.key) as client:
        answer = client.post(path, content=body if has_length else pieces(body))
        words = "the body has more than 16777216 bytes; send a shorter conversation"
        assert_refused(answer, path, status=413, code="request_too_large", words=words)
        assert "It is 4." in said(client.post(path, json=body_of(path, is_streamed=is_streamed)))
    assert served.sampled_texts() == ["It is 4."]


def pieces(body: bytes) -> Iterator[bytes]:
    yield from (body[start : start + 1_000_000] for start in range(0, len(body), 1_000_000))


@every_path
@streamed_or_not
@pytest.mark.parametrize("num_characters", [4, MANY], ids=["short", "100 MB"])
def test_a_wrong_key_is_unauthorised_whatever_comes_with_it(
    gateway: RunningGateway, path: str, is_streamed: bool, num_characters: int
) -> None:
    body = json.dumps(body_of(path, "x" * num_characters, is_streamed=is_streamed)).encode()
    for key in ("wrong", "sk-"):
        if len(body) > 1000 and key != "wrong":
            continue
        with gateway.http(key=key) as client:
            answer = client.post(path, content=body)
        assert_refused(answer, path, status=401, code="invalid_api_key", words="the API key is missing or wrong")


@every_path
@streamed_or_not
def test_a_session_that_ends_during_a_call_tells_its_client(
    gateway: RunningGateway, keys: SessionKeys, renderer: Renderer, path: str, is_streamed: bool
) -> None:
    served = ServedSession(keys, renderer, "never said")
    served.policy.may_answer.clear()
    answers: list[httpx2.Response] = []

    def ask() -> None:
        with gateway.http(key=served.key) as client:
            answers.append(client.post(path, json=body_of(path, is_streamed=is_streamed)))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    while not served.policy.requests:
        asking.join(0.01)
    gateway.soon(served.session.end)
    asking.join()
    assert_refused(answers[0], path, status=400, code="session_ended", words="ended during the call")
    assert served.session.sequences() == ()
