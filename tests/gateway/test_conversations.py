"""Conversations find their sessions by what was said, and give them up when they are not used."""

import asyncio
from typing import Any

import msgspec
import pytest
from event_loops import in_event_loop
from running_gateways import running_gateway
from scripted_sessions import MODEL, ScriptedSession

from freerun.chat.messages import ChatCall, Message
from freerun.errors import ChatError
from freerun.gateway.conversations import ConversationLimits, Conversations

HELLO = Message(role="user", content="hello")
MORE = Message(role="user", content="and more")


class EndingSession(ScriptedSession):
    has_ended = False

    def end(self) -> None:
        self.has_ended = True


class Server:
    """Conversations with sessions that say where they are, on a clock that a test moves."""

    def __init__(self, **limits: Any) -> None:
        self.opened: list[EndingSession] = []
        self.seconds = 0.0
        self.conversations = Conversations(
            MODEL,
            key="k",
            open_session=self._open,
            limits=ConversationLimits(**limits),
            now=lambda: self.seconds,
        )

    def _open(self) -> EndingSession:
        number = len(self.opened)
        self.opened.append(EndingSession(*(f"session {number}, reply {turn}" for turn in range(9))))
        return self.opened[-1]

    async def say(self, *messages: Message, **call: Any) -> Message:
        asked = ChatCall(messages=messages, **call)
        [reply] = await self.conversations.find("k", asked).reply(asked)
        return reply.message


@in_event_loop
async def test_a_request_that_continues_a_conversation_finds_its_session() -> None:
    server = Server()
    first, other = await server.say(HELLO), await server.say(HELLO)
    assert [first.content, other.content] == ["session 0, reply 0", "session 1, reply 0"]
    second = await server.say(HELLO, first, MORE)
    assert second.content == "session 0, reply 1"
    assert (await server.say(HELLO, other, MORE)).content == "session 1, reply 1"
    assert (await server.say(HELLO, first, MORE, second, HELLO)).content == "session 0, reply 2"


@in_event_loop
async def test_a_client_may_edit_repeat_and_go_back() -> None:
    server = Server()
    first = await server.say(HELLO)
    second = await server.say(HELLO, first, MORE)
    edited = msgspec.structs.replace(second, content="something else")
    assert (await server.say(HELLO, first, MORE, edited, MORE)).content == "session 0, reply 2"
    assert (await server.say(HELLO, first, HELLO)).content == "session 0, reply 3"
    returned = msgspec.structs.replace(first, content=f" {first.content}\n")
    assert (await server.say(HELLO, returned, MORE)).content == "session 0, reply 4"
    assert (await server.say(HELLO, edited, MORE)).content == "session 1, reply 0"


@in_event_loop
async def test_a_retry_goes_to_the_session_of_the_call_it_repeats() -> None:
    server = Server()
    await server.say(HELLO)
    assert (await server.say(HELLO, is_retry=True)).content.startswith("session 0")
    assert (await server.say(MORE, is_retry=True)).content.startswith("session 1")


@in_event_loop
async def test_an_idle_conversation_ends_and_is_served_by_a_new_session() -> None:
    server = Server(idle_seconds=10)
    first = await server.say(HELLO)
    server.seconds = 11
    await server.say(MORE)
    assert [session.has_ended for session in server.opened] == [True, False]
    assert (await server.say(HELLO, first, MORE)).content == "session 2, reply 0"
    assert len(server.conversations) == 2


@in_event_loop
async def test_the_longest_unused_conversation_makes_room_and_a_running_call_never_does() -> None:
    server = Server(max_conversations=2)
    running = asyncio.ensure_future(server.say(HELLO))
    await asyncio.sleep(0)
    server.opened[0].may_answer.clear()
    held = asyncio.ensure_future(server.say(HELLO, await running, MORE))
    await asyncio.sleep(0)
    for _ in range(3):
        await server.say(HELLO)
    assert [session.has_ended for session in server.opened] == [False, True, True, False]
    server.opened[0].may_answer.set()
    assert (await held).content == "session 0, reply 1"


@in_event_loop
async def test_a_conversation_of_many_turns_moves_to_a_new_session() -> None:
    server = Server(max_turns=2)
    said = [HELLO]
    for _ in range(3):
        said += [await server.say(*said), MORE]
    assert [message.content for message in said[1::2]] == [
        "session 0, reply 0",
        "session 0, reply 1",
        "session 1, reply 0",
    ]


@in_event_loop
async def test_a_refused_call_leaves_its_conversation_usable() -> None:
    server = Server()
    first = await server.say(HELLO)
    server.opened[0]._lines = ("", ChatError("too long"), "better")
    asked = ChatCall(messages=(HELLO, first, MORE))
    conversation = server.conversations.find("k", asked)
    with pytest.raises(ChatError):
        await conversation.reply(asked)
    assert conversation.num_in_flight == 0
    assert (await server.say(HELLO, first, MORE)).content == "better"


def test_one_key_opens_all_conversations_and_previous_responses() -> None:
    server = Server()
    with running_gateway(server.conversations) as gateway, gateway.openai(max_retries=0) as client:
        first = client.responses.create(model=MODEL, input="hello")
        second = client.responses.create(model=MODEL, input="more", previous_response_id=first.id)
        assert second.output_text == "session 0, reply 1"
        with gateway.http(key="other") as stranger:
            assert stranger.get("/models").status_code == 401


def test_clients_of_a_server_choose_how_they_are_sampled() -> None:
    server = Server()
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    with (
        running_gateway(server.conversations, clients_choose_sampling=True) as gateway,
        gateway.http() as client,
    ):
        answer = client.post("/chat/completions", json={**asked, "temperature": 0, "top_k": -1, "top_p": 0})
        plain = client.post("/chat/completions", json=asked)
        for wrong in ({"temperature": -1}, {"top_p": 1.5}, {"top_k": -2}):
            refused = client.post("/chat/completions", json={**asked, **wrong})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == next(iter(wrong))
    assert answer.headers["x-freerun-sampling"] == "temperature=0, top_p=1e-06, top_k=0"
    assert plain.headers["x-freerun-sampling"] == "temperature=0.7, top_p=0.9, top_k=20"
    chosen, default = (session.calls[0].sampling for session in server.opened)
    assert (chosen.temperature, chosen.top_p, chosen.top_k) == (0.0, 1e-6, 0)
    assert (default.temperature, default.top_p, default.top_k) == (None, None, None)
