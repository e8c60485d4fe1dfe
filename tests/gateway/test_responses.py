"""Responses, as OpenAI's own clients see them."""

import asyncio
from typing import Any

import openai
import pytest
from running_gateways import Behind, RunningGateway, running_gateway
from scripted_sessions import ADDS, MODEL, OneSession, ScriptedSession

from freerun.chat.messages import Message, Tool, ToolCall

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
ADD: Any = {"type": "function", "name": "add", "description": "Add.", "parameters": SCHEMA, "strict": True}
CALLS = Message(role="assistant", content="I add.", thinking="a tool", tool_calls=(ADDS,))


def asked(gateway: RunningGateway, **body: Any) -> Any:
    """The response that the client gets for a body."""
    with gateway.openai(max_retries=0) as client:
        return client.responses.create(**{"model": MODEL, "input": "2+2?", **body})


def test_a_question_is_answered_with_the_number_of_ids(behind: Behind) -> None:
    session = ScriptedSession("It is 4.")
    response = asked(behind(session), instructions="Be brief.", max_output_tokens=9, reasoning={"effort": "high"})
    assert response.output_text == "It is 4."
    assert (response.status, response.instructions) == ("completed", "Be brief.")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 3)
    assert response.usage.input_tokens_details.cached_tokens == 4
    assert session.calls[0].max_tokens == 9
    assert session.last_messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="2+2?"),
    )


def test_the_items_of_one_turn_go_out_and_come_back_as_one_message(behind: Behind) -> None:
    session = ScriptedSession(CALLS, "It is 4.")
    with behind(session).openai() as client:
        first = client.responses.create(model=MODEL, input="2+2?", tools=[ADD])
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        result = {"type": "function_call_output", "call_id": "call_1", "output": "4"}
        items: Any = [{"role": "user", "content": "2+2?"}, *first.output, result]
        assert client.responses.create(model=MODEL, input=items, tools=[ADD]).output_text == "It is 4."
    assert session.calls[0].tools == (Tool(name="add", description="Add.", parameters=SCHEMA),)
    assert session.last_messages == (
        Message(role="user", content="2+2?"),
        CALLS,
        Message(role="tool", content="4", tool_call_id="call_1", name="add"),
    )


def test_two_turns_and_two_calls_are_told_apart(behind: Behind) -> None:
    session = ScriptedSession()
    said: Any = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]}
    calls: Any = [{"type": "function_call", "call_id": f"c{i}", "name": "add", "arguments": "{}"} for i in (0, 1)]
    asked(behind(session), input=[said, said, *calls, said])
    tool_calls = tuple(ToolCall(id=f"c{i}", name="add", arguments="{}") for i in (0, 1))
    hm = Message(role="assistant", content="Hm.")
    assert session.last_messages == (hm, Message(role="assistant", content="Hm.", tool_calls=tool_calls), hm)


def test_a_previous_response_brings_its_conversation_back_without_its_instructions(behind: Behind) -> None:
    session = ScriptedSession(CALLS, "It is 4.", "Yes.")
    with behind(session).openai() as client:
        create = client.responses.create
        first = create(model=MODEL, input="2+2?", tools=[ADD], instructions="Be brief.")
        result: Any = [
            {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "4"}]}
        ]
        second = create(model=MODEL, input=result, previous_response_id=first.id)
        create(model=MODEL, input="Sure?", previous_response_id=second.id, instructions="Be kind.")
        create(model=MODEL, input="Or so?", previous_response_id=first.id)
    question = Message(role="user", content="2+2?")
    tool = Message(role="tool", content="4", tool_call_id="call_1", name="add")
    answer = Message(role="assistant", content="It is 4.")
    kind, sure = Message(role="system", content="Be kind."), Message(role="user", content="Sure?")
    assert session.calls[1].messages == (question, CALLS, tool)
    assert session.calls[2].messages == (kind, question, CALLS, tool, answer, sure)
    assert session.calls[3].messages == (question, CALLS, Message(role="user", content="Or so?"))


def test_a_response_is_known_to_its_own_key_and_only_if_it_was_stored() -> None:
    session = ScriptedSession("4")
    with running_gateway(OneSession(session, keys=("k", "other"))) as gateway, gateway.openai() as client:
        create = client.responses.create
        stored, passing = create(model=MODEL, input="2+2?"), create(model=MODEL, input="2+2?", store=False)
        with pytest.raises(openai.BadRequestError, match="is not known here") as refusal:
            create(model=MODEL, input="Sure?", previous_response_id=passing.id)
        assert refusal.value.code == "previous_response_not_found"
        with gateway.openai(api_key="other") as stranger, pytest.raises(openai.BadRequestError):
            stranger.responses.create(model=MODEL, input="Sure?", previous_response_id=stored.id)


def test_a_reply_that_was_cut_off_is_incomplete(behind: Behind) -> None:
    response = asked(behind(ScriptedSession("It is", finish_reason="length")))
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


def test_logprobs_come_if_they_are_included(behind: Behind) -> None:
    response = asked(behind(ScriptedSession("It is 4.")), include=["message.output_text.logprobs"])
    assert [token.token for token in response.output[0].content[0].logprobs] == ["It", "is", "4."]


def test_a_stream_has_every_event_once_and_in_order(behind: Behind) -> None:
    session = ScriptedSession(CALLS)
    with behind(session).openai() as client:
        events = [*client.responses.create(model=MODEL, input="2+2?", stream=True)]
    assert [event.type.removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == [*range(len(events))]


def test_the_stream_helper_of_the_sdk_adds_the_parts_up(behind: Behind) -> None:
    session = ScriptedSession(CALLS)

    async def ask(gateway: RunningGateway) -> Any:
        async with gateway.async_openai() as client:
            assert (await client.responses.create(model=MODEL, input="2+2?")).output_text == "I add."
            async with client.responses.stream(model=MODEL, input="2+2?") as stream:
                return await stream.get_final_response()

    response = asyncio.run(ask(behind(session)))
    assert response.output_text == "I add."
    assert response.output[2].arguments == ADDS.arguments


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"top_logprobs": 3}, "top_logprobs: 3 is not supported"),
        ({"text": {"format": {"type": "json_schema"}}}, 'text.format: "json_schema" is not supported'),
        ({"background": True}, "background: not supported"),
        ({"conversation": "conv_1"}, "conversation: not supported; send previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt: no prompts are stored here; send input"),
        ({"max_output_tokens": 0}, "max_output_tokens: 0 must be at least 1"),
        ({"input": []}, "input: there is no message to answer"),
        ({"input": [{"role": "ghost", "content": ""}]}, 'input: role "ghost" is not supported'),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 'an item of type "item_reference" is not supported'),
        ({"input": [{"type": "function_call", "name": "add"}]}, "a function_call needs call_id and name"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 'a part of type "input_image"'),
        ({"tools": [{"type": "web_search"}]}, 'a tool of type "web_search" is not supported'),
        ({"tools": [ADD], "tool_choice": {"type": "mcp"}}, 'tool_choice: type "mcp" is not supported'),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, "there: add"),
        ({"previous_response_id": "resp_1"}, "is not known here"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    behind: Behind, body: dict[str, Any], reason: str
) -> None:
    session = ScriptedSession()
    with pytest.raises(openai.BadRequestError, match=reason) as refusal:
        asked(behind(session), extra_body=body)
    assert refusal.value.param
    assert session.calls == []
