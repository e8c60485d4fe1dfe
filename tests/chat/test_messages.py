"""Messages and calls are plain values: equal if they say the same, never changed."""

import msgspec
import pytest

from freerun.chat.messages import ChatCall, Message, Reply, Tool, ToolCall

CALL = ChatCall(
    messages=(Message(role="user", content="2 + 2?"),),
    tools=(Tool(name="add", parameters={"type": "object", "properties": {"a": {"type": "integer"}}}),),
)


def test_a_repeated_call_equals_the_first_but_for_the_mark_of_a_retry() -> None:
    body = msgspec.json.encode(CALL)
    again = msgspec.json.decode(body, type=ChatCall)
    assert again == CALL
    assert msgspec.structs.replace(again, is_retry=True) != CALL


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        CALL.messages[0].content = "3 + 3?"  # type: ignore[misc]  # the point of the test


def test_the_text_of_a_reply_is_what_the_policy_said_without_its_tool_calls() -> None:
    asked = ToolCall(id="c00000000", name="add", arguments="{}")
    reply = Reply(
        id="r",
        message=Message(role="assistant", content="One moment.", tool_calls=(asked,)),
        finish_reason="tool_calls",
        sampled_text='One moment.<tool_call>{"name": "add", "arguments": {}}</tool_call>',
        call=0,
        num_prompt_tokens=7,
        num_completion_tokens=9,
    )
    assert reply.text == "One moment."
