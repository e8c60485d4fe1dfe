"""Real sessions over HTTP: a client that appends makes one sequence, and a retry is sampled once."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from running_gateways import RunningGateway, running_gateway
from scripted_sessions import MODEL
from served_sessions import ServedSession, small_renderer
from written_tool_calls import hermes

from freerun.chat.rendering import Renderer
from freerun.chat.session import SessionLimits
from freerun.gateway.sessions import SessionKeys

SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
CALLS = [hermes([("add", {"a": 2, "b": 2})]), "I add once more." + hermes([("add", {"a": 4, "b": 4})])]
SCRIPT = [*CALLS, "It is 8."]
Ask = Callable[..., Any]


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


def chat_agent(gateway: RunningGateway, key: str, *, is_streamed: bool) -> str:
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
    messages: Any = [{"role": "user", "content": "2+2+4?"}]
    with gateway.openai(api_key=key) as client:
        while True:
            if is_streamed:
                with client.chat.completions.stream(model=MODEL, messages=messages, tools=[tool]) as stream:
                    message: Any = stream.get_final_completion().choices[0].message
            else:
                create = client.chat.completions.create
                message = create(model=MODEL, messages=messages, tools=[tool]).choices[0].message
            if not message.tool_calls:
                return str(message.content)
            messages.append(message)
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "4"})


def responses_agent(gateway: RunningGateway, key: str, *, is_streamed: bool) -> str:
    tool: Any = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}
    items: Any = "2+2+4?"
    previous: Any = None
    with gateway.openai(api_key=key) as client:
        while True:
            asked: Any = {"model": MODEL, "input": items, "tools": [tool], "previous_response_id": previous}
            if is_streamed:
                with client.responses.stream(**asked) as stream:
                    response: Any = stream.get_final_response()
            else:
                response = client.responses.create(**asked)
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return str(response.output_text)
            previous = response.id
            items = [{"type": "function_call_output", "call_id": call.call_id, "output": "4"} for call in calls]


def anthropic_agent(gateway: RunningGateway, key: str, *, is_streamed: bool) -> str:
    tool: Any = {"name": "add", "input_schema": SCHEMA}
    messages: Any = [{"role": "user", "content": "2+2+4?"}]
    with gateway.anthropic(api_key=key) as client:
        while True:
            asked: Any = {"model": MODEL, "max_tokens": 150, "messages": messages, "tools": [tool]}
            if is_streamed:
                with client.messages.stream(**asked) as stream:
                    message: Any = stream.get_final_message()
            else:
                message = client.messages.create(**asked)
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return str(message.content[0].text)
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "4"} for call in calls]
            messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("agent", [chat_agent, responses_agent, anthropic_agent])
def test_three_turns_with_tools_are_one_sequence(
    gateway: RunningGateway, keys: SessionKeys, renderer: Renderer, agent: Ask, is_streamed: bool
) -> None:
    served = ServedSession(keys, renderer, *SCRIPT)
    assert agent(gateway, served.key, is_streamed=is_streamed) == "It is 8."
    assert served.sampled_texts() == ["".join(SCRIPT)]
    for request, completion in zip(served.policy.requests[1:], served.policy.completions, strict=False):
        assert completion.token_ids.tolist() in windows(request.token_ids.tolist(), len(completion.token_ids))


def windows(ids: list[int], size: int) -> Iterator[list[int]]:
    return (ids[start : start + size] for start in range(len(ids) - size + 1))


def ask_chat(gateway: RunningGateway, key: str, **settings: Any) -> str:
    with gateway.openai(api_key=key, **settings) as client:
        message: Any = {"role": "user", "content": "2+2?"}
        return client.chat.completions.create(model=MODEL, messages=[message]).id.removeprefix("chatcmpl-")


def ask_chat_stream(gateway: RunningGateway, key: str, **settings: Any) -> str:
    with gateway.openai(api_key=key, **settings) as client:
        message: Any = {"role": "user", "content": "2+2?"}
        chunks = [*client.chat.completions.create(model=MODEL, messages=[message], stream=True)]
        return str(chunks[0].id).removeprefix("chatcmpl-")


def ask_responses(gateway: RunningGateway, key: str, **settings: Any) -> str:
    with gateway.openai(api_key=key, **settings) as client:
        return client.responses.create(model=MODEL, input="2+2?").id.removeprefix("resp_")


def ask_anthropic(gateway: RunningGateway, key: str, **settings: Any) -> str:
    with gateway.anthropic(api_key=key, **settings) as client:
        message: Any = {"role": "user", "content": "2+2?"}
        created = client.messages.create(model=MODEL, max_tokens=9, messages=[message])
        return created.id.removeprefix("msg_")


def ask_async(gateway: RunningGateway, key: str, **settings: Any) -> str:
    async def ask() -> str:
        async with gateway.async_openai(api_key=key, **settings) as client:
            message: Any = {"role": "user", "content": "2+2?"}
            completion = await client.chat.completions.create(model=MODEL, messages=[message])
            return completion.id.removeprefix("chatcmpl-")

    return asyncio.run(ask())


@pytest.mark.parametrize("ask", [ask_chat, ask_chat_stream, ask_responses, ask_anthropic, ask_async])
def test_a_policy_slower_than_the_clients_patience_answers_once(
    gateway: RunningGateway, keys: SessionKeys, renderer: Renderer, ask: Ask
) -> None:
    served = ServedSession(keys, renderer, "It is 4.")
    served.policy.may_answer.clear()
    ids: list[str] = []
    client = threading.Thread(
        target=lambda: ids.append(ask(gateway, served.key, timeout=0.3, max_retries=20)), daemon=True
    )
    client.start()
    gateway.run(until(lambda: gateway.gateway.num_calls >= 2))
    gateway.soon(served.policy.may_answer.set)
    client.join()
    assert len(ids) == 1
    assert len(served.policy.requests) == 1
    assert served.sampled_texts() == ["It is 4."]


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_a_retry_after_the_answer_gets_the_same_answer_and_another_question_does_not(
    gateway: RunningGateway, keys: SessionKeys, renderer: Renderer
) -> None:
    served = ServedSession(keys, renderer, "four", "five", "six")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "2+2?"}]}
    other = {"model": MODEL, "messages": [{"role": "user", "content": "2+3?"}]}
    retry = {"x-stainless-retry-count": "1"}
    with gateway.http(key=served.key) as client:

        def said(asked: dict[str, Any], headers: dict[str, str]) -> Any:
            answer = client.post("chat/completions", json=asked, headers=headers).json()
            return answer["id"], answer["choices"][0]["message"]["content"]

        first = said(body, {"x-stainless-retry-count": "0"})
        assert said(body, retry) == first
        assert said(other, retry)[1] == "five"
        assert said(body, {})[1] == "six"
    assert len(served.policy.requests) == 3


def test_a_session_that_ends_takes_its_calls_along(
    gateway: RunningGateway, keys: SessionKeys, renderer: Renderer
) -> None:
    served = ServedSession(keys, renderer, "never said")
    served.policy.may_answer.clear()
    refusals: list[openai.BadRequestError] = []

    def ask() -> None:
        with pytest.raises(openai.BadRequestError) as refusal:
            ask_chat(gateway, served.key)
        refusals.append(refusal.value)

    client = threading.Thread(target=ask, daemon=True)
    client.start()
    gateway.run(until(lambda: len(served.policy.requests) == 1))
    gateway.soon(served.session.end)
    client.join()
    [refusal] = refusals
    assert refusal.code == "session_ended"
    gateway.run(until(lambda: gateway.gateway.num_calls == 0))
    assert served.session.sequences() == ()


def test_the_limits_of_a_session_are_errors_of_the_client(
    gateway: RunningGateway, keys: SessionKeys, renderer: Renderer
) -> None:
    limits = SessionLimits(max_turns=1, max_session_tokens=100, max_completion_tokens=50)
    served = ServedSession(keys, renderer, "4", limits=limits)
    long: Any = [{"role": "user", "content": "x" * 500}]
    with gateway.openai(api_key=ServedSession(keys, renderer, limits=limits).key) as client:
        with pytest.raises(openai.BadRequestError, match="tokens") as refusal:
            client.chat.completions.create(model=MODEL, messages=long)
        assert refusal.value.code == "context_length_exceeded"
    ask_chat(gateway, served.key)
    with pytest.raises(openai.BadRequestError, match="turns") as refusal:
        ask_chat(gateway, served.key)
    assert refusal.value.code == "session_ended"


def test_siblings_stops_and_logprobs_are_those_of_the_session(
    gateway: RunningGateway, keys: SessionKeys, renderer: Renderer
) -> None:
    served = ServedSession(keys, renderer, "It is 4.\nYes", "Four.\n")
    with gateway.openai(api_key=served.key) as client:
        question: Any = [{"role": "user", "content": "2+2?"}]
        completion = client.chat.completions.create(
            model=MODEL, messages=question, n=2, stop="\n", max_tokens=20, logprobs=True
        )
    assert [choice.message.content for choice in completion.choices] == ["It is 4.", "Four."]
    logprobs = completion.choices[1].logprobs
    assert logprobs is not None
    assert {token.logprob for token in logprobs.content or ()} == {-2.0}
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len(served.policy.requests[0].token_ids)
    assert completion.usage.completion_tokens == sum(len(c.token_ids) for c in served.policy.completions)
    assert served.policy.requests[0].max_tokens == 20
    assert len(served.sampled_texts()) == 2


def test_a_forced_call_is_begun_for_the_policy(
    gateway: RunningGateway, keys: SessionKeys, renderer: Renderer
) -> None:
    served = ServedSession(keys, renderer, ' {"a": 2, "b": 2}}\n</tool_call>')
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
    choice: Any = {"type": "function", "function": {"name": "add"}}
    with gateway.openai(api_key=served.key) as client:
        question: Any = [{"role": "user", "content": "2+2?"}]
        created = client.chat.completions.create(
            model=MODEL, messages=question, tools=[tool], tool_choice=choice
        ).choices[0]
    assert created.finish_reason == "tool_calls"
    calls: Any = created.message.tool_calls
    [call] = calls
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 2, "b": 2}')
