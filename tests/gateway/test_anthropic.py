"""Messages, as Anthropic's own clients see them."""

import asyncio
from typing import Any

import anthropic
import pytest
from running_gateways import Behind, RunningGateway
from scripted_sessions import ADDS, MODEL, ScriptedSession

from freerun.chat.messages import Message, Tool, ToolCall

QUESTION: Any = [{"role": "user", "content": "2+2?"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADD: Any = {"name": "add", "description": "Add.", "input_schema": SCHEMA}
CALLS = Message(role="assistant", content="I add.", thinking="a tool", tool_calls=(ADDS,))
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


def asked(gateway: RunningGateway, **body: Any) -> Any:
    """The message that the client gets for a body."""
    with gateway.anthropic(max_retries=0) as client:
        return client.messages.create(**{"model": MODEL, "max_tokens": 50, "messages": QUESTION, **body})


def test_a_question_is_answered_with_the_number_of_ids(behind: Behind) -> None:
    session = ScriptedSession("It is 4.")
    message = asked(behind(session), system=[{"type": "text", "text": "Be brief."}], stop_sequences=["\n"])
    assert [block.text for block in message.content] == ["It is 4."]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == 10
    assert (message.usage.cache_read_input_tokens, message.usage.output_tokens) == (4, 3)
    [call] = session.calls
    assert (call.max_tokens, call.stop) == (50, ("\n",))
    assert call.messages == (Message(role="system", content="Be brief."), Message(role="user", content="2+2?"))


def test_a_tool_call_goes_out_as_an_object_and_comes_back_with_its_result(behind: Behind) -> None:
    session = ScriptedSession(CALLS, "It is 4.")
    with behind(session).anthropic() as client:
        create = client.messages.create
        first = create(model=MODEL, max_tokens=2000, messages=QUESTION, tools=[ADD], thinking=THINKING)
        assert first.stop_reason == "tool_use"
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
        result: Any = {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "4"}]},
                {"type": "text", "text": "And?"},
            ],
        }
        turn: Any = {"role": "assistant", "content": first.content}
        second = create(model=MODEL, max_tokens=50, messages=[*QUESTION, turn, result], tools=[ADD])
    assert second.content[0].type == "text"
    assert session.calls[0].tools == (Tool(name="add", description="Add.", parameters=SCHEMA),)
    call = ToolCall(id="call_1", name="add", arguments='{"a":2,"b":2}')
    assert session.last_messages[1:] == (
        Message(role="assistant", content="I add.", thinking="a tool", tool_calls=(call,)),
        Message(role="tool", content="4", tool_call_id="call_1", name="add"),
        Message(role="user", content="And?"),
    )


def test_a_client_that_did_not_ask_for_thinking_finds_the_text_first(behind: Behind) -> None:
    message = asked(behind(ScriptedSession(Message(role="assistant", content="4", thinking="2 and 2"))))
    assert message.content[0].text == "4"


def test_words_before_a_result_stay_before_it(behind: Behind) -> None:
    session = ScriptedSession()
    result = {"type": "tool_result", "tool_use_id": "c", "content": "4"}
    asked(behind(session), messages=[{"role": "user", "content": [{"type": "text", "text": "See:"}, result]}])
    assert [message.role for message in session.last_messages] == ["user", "tool"]


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "no JSON", '"text"', "[" * 100_000])
def test_arguments_that_are_no_object_are_shown_as_text(behind: Behind, arguments: str) -> None:
    call = ToolCall(id="c", name="add", arguments=arguments)
    message = asked(behind(ScriptedSession(Message(role="assistant", tool_calls=(call,)))))
    assert message.content[0].input == {"arguments": arguments}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "add"}, "add"),
    ],
    ids=str,
)
def test_every_choice_of_tools_has_its_word_here(behind: Behind, choice: Any, expected: str) -> None:
    session = ScriptedSession()
    asked(behind(session), tools=[ADD], tool_choice=choice)
    assert session.calls[0].tool_choice == expected


def test_the_stop_reason_names_the_limit_or_the_stop_string(behind: Behind) -> None:
    assert asked(behind(ScriptedSession("It is", finish_reason="length"))).stop_reason == "max_tokens"
    message = asked(behind(ScriptedSession("4.\nYes")), stop_sequences=["Yes", "\n", "No"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "\n")


def test_a_stream_starts_fills_and_stops_every_block(behind: Behind) -> None:
    with behind(ScriptedSession(CALLS)).anthropic() as client:
        events = [*client.messages.create(model=MODEL, max_tokens=50, messages=QUESTION, stream=True)]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [event.type for event in events] == ["message_start", *block, *block, "message_delta", "message_stop"]


def test_the_stream_helper_of_the_sdk_adds_the_parts_up(behind: Behind) -> None:
    async def ask(gateway: RunningGateway) -> Any:
        async with gateway.async_anthropic() as client:
            asked = {"model": MODEL, "max_tokens": 2000, "messages": QUESTION, "thinking": THINKING}
            plain = await client.messages.create(**asked)
            async with client.messages.stream(**asked) as stream:
                return plain, await stream.get_final_message()

    plain, streamed = asyncio.run(ask(behind(ScriptedSession(CALLS))))
    assert streamed.stop_reason == plain.stop_reason == "tool_use"
    assert [block.type for block in streamed.content] == ["thinking", "text", "tool_use"]
    assert streamed.content[2].input == {"a": 2, "b": 2}
    assert streamed.usage == plain.usage


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"output_config": {"format": {"type": "json_schema"}}}, 'output_config.format: "json_schema" is not'),
        ({"output_format": {"type": "json_schema"}}, 'output_format: "json_schema" is not supported'),
        ({"mcp_servers": [{}]}, "mcp_servers: nothing calls them here"),
        ({"max_tokens": 0}, "max_tokens: 0 must be at least 1"),
        ({"stop_sequences": [""]}, "stop_sequences: must be at most 16 strings"),
        ({"messages": []}, "messages: there is no message to answer"),
        ({"messages": [{"role": "ghost", "content": ""}]}, 'messages: role "ghost" is none of'),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 'a part of type "image" is not'),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "tool_use needs id and name"),
        ({"system": [{"type": "document"}]}, 'system: a part of type "document" is not supported'),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, '"web_search_20250305" is not'),
        ({"tools": [ADD], "tool_choice": {"type": "some"}}, 'tool_choice: type "some" is none of'),
        ({"tool_choice": {"type": "any"}}, 'tool_choice: "required" needs a tool'),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    behind: Behind, body: dict[str, Any], reason: str
) -> None:
    session = ScriptedSession()
    with pytest.raises(anthropic.BadRequestError, match=reason):
        asked(behind(session), extra_body=body)
    assert session.calls == []
