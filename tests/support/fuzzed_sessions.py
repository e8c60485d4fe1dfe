"""Sessions of a random policy with random clients.

The policy samples unnatural token splits, thinks, calls tools, is cut off, ends with the wrong end token. Clients
return its messages in another form, edit, drop, summarise, ask again, overlap and retry.
"""

import asyncio
import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
from scripted_policy import completion_of
from written_tool_calls import hermes, llama_json, pythonic, xml

from freerun.chat.messages import ChatCall, Message, Reply, Tool, ToolCall
from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, SampleRequest, SessionLimits
from freerun.data.tokenizer import Tokenizer
from freerun.errors import TemplateRefusedError
from freerun.types import Completion, Ints

WORDS = [
    "the",
    "door",
    "is",
    "locked,",
    "so I",
    "take a",
    "key;",
    "état",
    "naïve",
    "漢字",
    "🙂",
    "x=1",
    "\n\n",
    "",
    "<b>",
]
WORDS += ['{"a": 1}', "</think>", "[f(a=1)]", "<|im_end|>", "<tool_call>"]
TOOLS = (
    Tool(
        name="add",
        description="Add two numbers.",
        parameters={"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    ),
    Tool(name="look", parameters={"type": "object", "properties": {"where": {"type": "string"}}}),
)
WRITERS = {"hermes": hermes, "json": llama_json, "pythonic": pythonic, "xml": xml}
LIMITS = SessionLimits(max_turns=99, max_session_tokens=100_000, max_completion_tokens=1000)


@dataclass(frozen=True)
class Habits:
    """What the policy and the client do."""

    edits: bool = True
    """The client changes history, and asks in odd ways."""
    thinks: bool = True
    strays: bool = True
    """The policy is cut off, ends with other end tokens, writes white space and broken calls."""
    calls: bool = True


APPENDS = Habits(edits=False, thinks=False, strays=False)


@dataclass
class Played:
    """A session that was played, and what the engine saw of it: ids by the number of the call."""

    session: ChatSession
    prompts: dict[int, Ints] = field(default_factory=dict)
    sampled: dict[int, Completion] = field(default_factory=dict)
    asked: dict[int, ChatCall] = field(default_factory=dict)
    num_refused: int = 0


def some_words(rng: Random, most: int = 6) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


class RandomPolicy:
    """Samples anything; satisfies `Sample`."""

    def __init__(self, renderer: Renderer, rng: Random, habits: Habits) -> None:
        self.prompts: dict[int, Ints] = {}
        self.sampled: dict[int, Completion] = {}
        self._renderer = renderer
        self._rng = rng
        self._habits = habits

    async def __call__(self, request: SampleRequest) -> tuple[Completion, ...]:
        completions = []
        for call in range(request.call, request.call + request.num_samples):
            if self._rng.random() < 0.3:
                await asyncio.sleep(0)
            self.prompts[call] = request.token_ids
            self.sampled[call] = self._sample(call)
            completions.append(self.sampled[call])
        return tuple(completions)

    def _sample(self, call: int) -> Completion:
        rng, tokenizer = self._rng, self._renderer.tokenizer
        ids = odd_split(rng, tokenizer, self._text())
        ends = list(tokenizer.stop_token_ids)
        if self._habits.strays and rng.random() < 0.2:
            ids = ids[: rng.randint(1, len(ids))]
        elif ends:
            ids.append(rng.choice(ends) if self._habits.strays and rng.random() < 0.1 else ends[0])
        return completion_of(tokenizer, ids, call=call, finish_reason=rng.choice(["stop", "length"]))

    def _text(self) -> str:
        rng = self._rng
        text = self._calls() if self._habits.calls and rng.random() < 0.4 else self._words()
        if self._habits.thinks and rng.random() < 0.3:
            text = (
                rng.choice(["<think>\n{}\n</think>\n\n", "{}</think>", "<think>{}</think>"]).format(self._words())
                + text
            )
        return text

    def _words(self) -> str:
        text = some_words(self._rng)
        return text if self._habits.strays else text.replace("</think>", "").strip() or "ok"

    def _calls(self) -> str:
        rng = self._rng
        calls = [self._call() for _ in range(1 if rng.random() < 0.8 else 2)]
        text = WRITERS[self._renderer.tool_format.name](calls)
        if self._habits.strays and rng.random() < 0.3:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice([" ", "\n", "}", ""]) + text[at + 1 :]
        return text

    def _call(self) -> tuple[str, dict[str, Any]]:
        if self._rng.random() < 0.5:
            return "look", {"where": self._words()}
        return "add", {"a": self._rng.randint(-9, 10**20), "b": 2}


def odd_split(rng: Random, tokenizer: Tokenizer, text: str) -> list[int]:
    """A tokenization that no encoder would choose, as sampling gives it."""
    ids: list[int] = []
    while text:
        size = rng.randint(1, 6)
        ids += tokenizer.encode_after(text[:size], tokenizer.stop_token_ids[0]).tolist()
        text = text[size:]
    return ids or tokenizer.encode_after("x", tokenizer.stop_token_ids[0]).tolist()


def rewritten(rng: Random, message: Message) -> Message:
    """What clients make of a message: the same, in another form."""

    def arguments(text: str) -> str:
        value = json.loads(text)
        return rng.choice(
            [text, json.dumps(value), json.dumps(value, separators=(",", ":")), json.dumps(value, indent=1)]
        )

    calls = tuple(msgspec.structs.replace(c, arguments=arguments(c.arguments)) for c in message.tool_calls)
    return Message(
        role="assistant",
        content=message.content.strip() if rng.random() < 0.3 else message.content,
        tool_calls=calls,
        thinking=message.thinking if rng.random() < 0.3 else "",
    )


async def play(renderer: Renderer, rng: Random, habits: Habits) -> Played:
    """One session from its first call to its end."""
    policy = RandomPolicy(renderer, rng, habits)
    session = ChatSession(renderer, policy, LIMITS)
    played = Played(session, policy.prompts, policy.sampled)
    tools = TOOLS if habits.calls and rng.random() < 0.7 else ()
    messages = [Message(role="system", content="You are terse.")] if rng.random() < 0.5 else []
    messages.append(Message(role="user", content=some_words(rng)))
    for _ in range(rng.randint(1, 5)):
        call = ChatCall(messages=tuple(messages), tools=tools)
        try:
            reply = await _ask(played, call, rng, habits)
        except TemplateRefusedError:
            played.num_refused += 1
            break
        messages += [rewritten(rng, reply.message), *_answers(rng, reply.message)]
        if habits.edits and rng.random() < 0.4:
            messages = _edited(rng, messages)
            tools = rng.choice([tools, TOOLS])
    return played


async def _ask(played: Played, call: ChatCall, rng: Random, habits: Habits) -> Reply:
    """A call, in one of the ways in which clients make them."""

    async def reply(asked: ChatCall) -> tuple[Reply, ...]:
        replies = await played.session.reply(asked)
        played.asked |= {reply.call: asked for reply in replies}
        return replies

    way = (
        rng.choice(["plain", "plain", "siblings", "overlap", "retry", "demand", "stop"])
        if habits.edits
        else "plain"
    )
    if way == "siblings":
        return rng.choice(await reply(msgspec.structs.replace(call, num_replies=rng.randint(2, 3))))
    if way == "overlap":
        other = msgspec.structs.replace(call, messages=(*call.messages, Message(role="user", content="And?")))
        replies = await asyncio.gather(reply(call), reply(rng.choice([call, other])), return_exceptions=True)
        if isinstance(replies[0], BaseException):
            raise replies[0]
        return replies[0][0]
    if way == "retry":
        again = msgspec.structs.replace(call, is_retry=True)
        first, second = await asyncio.gather(reply(call), reply(again))
        assert first == second
        (third,) = await played.session.reply(again)
        return third
    if way == "demand" and call.tools:
        call = msgspec.structs.replace(call, tool_choice=rng.choice(["required", "add"]))
    if way == "stop":
        call = msgspec.structs.replace(call, stop=(rng.choice(["key", "\n"]),))
    return rng.choice(await reply(call))


def _answers(rng: Random, message: Message) -> list[Message]:
    if not message.tool_calls:
        return [Message(role="user", content=some_words(rng))]
    return [Message(role="tool", tool_call_id=c.id, content=some_words(rng)) for c in message.tool_calls]


def _edited(rng: Random, messages: list[Message]) -> list[Message]:
    user = Message(role="user", content=some_words(rng))
    match rng.choice(["edit", "drop", "summary", "resample", "prose", "strange call"]):
        case "edit":
            return [user if n == 1 else message for n, message in enumerate(messages)]
        case "drop":
            return [*messages[:1], *messages[3:], user]
        case "summary":
            return [Message(role="user", content="A summary: " + some_words(rng))]
        case "resample":
            return messages[:-2] if len(messages) > 2 else messages
        case "prose":
            return [*messages[:-2], Message(role="assistant", content="Calling tools: ..."), user]
        case _:
            asked = ToolCall(id="c99999999", name="look", arguments='{"where": "up"}')
            result = Message(role="tool", tool_call_id=asked.id, content="sky")
            return [*messages, Message(role="assistant", tool_calls=(asked,)), result]
