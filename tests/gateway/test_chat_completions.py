"""Chat completions, as OpenAI's own clients see them."""

import asyncio
from typing import Any

import openai
import pytest
from running_gateways import Behind, RunningGateway
from scripted_sessions import ADDS, MODEL, ScriptedSession

from freerun.chat.messages import Message, Tool, ToolCall

QUESTION: Any = [{"role": "user", "content": "2+2?"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD: Any = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}


def asked(gateway: RunningGateway, **body: Any) -> Any:
    """The completion that the client gets for a body."""
    with gateway.openai(max_retries=0) as client:
        return client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, **body})


def test_a_question_is_answered_with_the_number_of_ids(behind: Behind) -> None:
    session = ScriptedSession("It is 4.")
    completion = asked(behind(session))
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("It is 4.", "stop")
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (10, 3)
    assert completion.usage.prompt_tokens_details.cached_tokens == 4
    assert completion.id.startswith("chatcmpl-")
    assert session.last_messages == (Message(role="user", content="2+2?"),)


def test_a_tool_call_goes_out_as_the_policy_wrote_it_and_comes_back_with_its_result(behind: Behind) -> None:
    session = ScriptedSession(Message(role="assistant", tool_calls=(ADDS,)), "It is 4.")
    with behind(session).openai() as client:
        create = client.chat.completions.create
        first = create(model=MODEL, messages=QUESTION, tools=[ADD]).choices[0]
        assert first.finish_reason == "tool_calls"
        assert first.message.content is None
        result = {"role": "tool", "tool_call_id": "call_1", "content": "4"}
        conversation: Any = [*QUESTION, first.message, result]
        second = create(model=MODEL, messages=conversation, tools=[ADD]).choices[0]
    assert second.message.content == "It is 4."
    assert session.calls[0].tools == (Tool(name="add", description="Add.", parameters=SCHEMA),)
    assert session.last_messages[1:] == (
        Message(role="assistant", tool_calls=(ADDS,)),
        Message(role="tool", content="4", tool_call_id="call_1", name="add"),
    )


def test_settings_reach_the_session(behind: Behind) -> None:
    session = ScriptedSession("4")
    asked(behind(session), max_tokens=9, stop=["\n", "."], n=3, logprobs=True, tools=[ADD], tool_choice="required")
    [call] = session.calls
    assert (call.max_tokens, call.stop, call.num_replies, call.wants_logprobs) == (9, ("\n", "."), 3, True)
    assert call.tool_choice == "required"


def test_the_newer_name_of_max_tokens_wins_and_one_stop_string_needs_no_list(behind: Behind) -> None:
    session = ScriptedSession("4")
    named = {"type": "function", "function": {"name": "add"}}
    asked(behind(session), max_tokens=9, max_completion_tokens=5, stop="\n", tools=[ADD], tool_choice=named)
    [call] = session.calls
    assert (call.max_tokens, call.stop, call.tool_choice, call.num_replies) == (5, ("\n",), "add", 1)


def test_n_replies_are_choices_of_one_completion(behind: Behind) -> None:
    completion = asked(behind(ScriptedSession("It is 4.")), n=3, logprobs=True)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert completion.usage.completion_tokens == 9
    tokens = completion.choices[2].logprobs.content
    assert [(token.token, token.logprob) for token in tokens] == [("It", -0.5), ("is", -0.5), ("4.", -0.5)]


def test_a_stream_is_role_delta_finish_and_usage(behind: Behind) -> None:
    session = ScriptedSession(Message(role="assistant", content="4", thinking="2 and 2", tool_calls=(ADDS,)))
    with behind(session).openai() as client:
        options: Any = {"include_usage": True}
        stream = client.chat.completions.create(
            model=MODEL, messages=QUESTION, stream=True, stream_options=options, logprobs=True
        )
        role, delta, finish, usage = stream
    assert role.choices[0].delta.role == "assistant"
    assert delta.choices[0].delta.content == "4"
    [call] = delta.choices[0].delta.tool_calls or []
    assert call.index == 0
    assert call.function is not None
    assert call.function.arguments == ADDS.arguments
    assert delta.choices[0].logprobs is not None
    assert finish.choices[0].finish_reason == "tool_calls"
    assert usage.usage is not None
    assert usage.usage.total_tokens == 11


def test_the_stream_helper_of_the_sdk_adds_the_parts_up(behind: Behind) -> None:
    session = ScriptedSession(Message(role="assistant", content="It is 4.", tool_calls=(ADDS,)))
    with (
        behind(session).openai() as client,
        client.chat.completions.stream(model=MODEL, messages=QUESTION) as stream,
    ):
        stream.until_done()
        [choice] = stream.get_final_completion().choices
    assert choice.message.content == "It is 4."
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.arguments == ADDS.arguments


def test_an_asynchronous_client_may_have_many_calls_at_once(behind: Behind) -> None:
    session = ScriptedSession("4")

    async def ask(gateway: RunningGateway) -> list[str | None]:
        async with gateway.async_openai() as client:
            create = client.chat.completions.create
            completions = await asyncio.gather(*(create(model=MODEL, messages=QUESTION) for _ in range(8)))
            stream = await create(model=MODEL, messages=QUESTION, stream=True)
            streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return [*(completion.choices[0].message.content for completion in completions), streamed]

    assert asyncio.run(ask(behind(session))) == ["4"] * 9


def test_parts_of_a_content_become_text_and_developers_are_the_system(behind: Behind) -> None:
    session = ScriptedSession("4")
    parts = [{"type": "text", "text": "2+2?"}, {"type": "text", "text": "Be brief."}]
    asked(
        behind(session),
        messages=[{"role": "developer", "content": "Be kind."}, {"role": "user", "content": parts}],
    )
    assert session.last_messages == (
        Message(role="system", content="Be kind."),
        Message(role="user", content="2+2?\nBe brief."),
    )


def test_thinking_goes_out_and_comes_back(behind: Behind) -> None:
    session = ScriptedSession(Message(role="assistant", content="4", thinking="2 and 2"))
    with behind(session).openai() as client:
        create = client.chat.completions.create
        message = create(model=MODEL, messages=QUESTION).choices[0].message
        turn: Any = message.model_dump(exclude_none=True)
        create(model=MODEL, messages=[*QUESTION, turn, *QUESTION])
    assert session.last_messages[1] == Message(role="assistant", content="4", thinking="2 and 2")


def test_arguments_as_an_object_are_written_as_json(behind: Behind) -> None:
    session = ScriptedSession("4")
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    asked(behind(session), messages=[*QUESTION, {"role": "assistant", "tool_calls": [call]}])
    assert session.last_messages[1].tool_calls == (ToolCall(id="c", name="add", arguments='{"a":2}'),)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"logprobs": True, "top_logprobs": 3}, "top_logprobs: 3 is not supported"),
        ({"response_format": {"type": "json_object"}}, 'response_format: "json_object" is not supported'),
        ({"n": 0}, "n: 0 must be from 1 to 64"),
        ({"n": 65}, "n: 65 must be from 1 to 64"),
        ({"max_tokens": 0}, "max_tokens: 0 must be at least 1"),
        ({"stop": [""]}, "stop: must be at most 16 strings, none of them empty"),
        ({"messages": []}, "messages: there is no message to answer"),
        ({"messages": QUESTION * 10_001}, "messages: there are 10001 messages, more than 10000"),
        ({"messages": [{"role": "ghost", "content": ""}]}, 'messages: role "ghost" is none of'),
        ({"tool_choice": "required"}, 'tool_choice: "required" needs a tool that is not in tools'),
        ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "there: add"),
        ({"tools": [ADD], "tool_choice": {"type": "allowed_tools"}}, 'type "allowed_tools" is not supported'),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, 'a tool of type "custom" is not supported'),
        ({"tools": [{"type": "function", "function": {}}]}, "tools: a function has no name"),
        ({"modalities": ["text", "audio"]}, "modalities: only text is supported"),
        ({"functions": [{"name": "add"}]}, "functions: the old form is not supported; send tools"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            'a part of type "image_url" is not',
        ),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "the policy reads text only"),
        ({"temperature": "hot"}, r"Expected `float | null`, got `str` - at `\$.temperature`"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    behind: Behind, body: dict[str, Any], reason: str
) -> None:
    session = ScriptedSession()
    with pytest.raises(openai.BadRequestError, match=reason) as refusal:
        asked(behind(session), extra_body=body)
    assert refusal.value.type == "invalid_request_error"
    assert refusal.value.param
    assert session.calls == []


def test_the_place_of_a_wrong_type_is_the_param(behind: Behind) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        asked(behind(ScriptedSession()), extra_body={"messages": [{"role": 7}]})
    assert refusal.value.param == "messages[0].role"
