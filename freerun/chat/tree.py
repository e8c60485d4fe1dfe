"""The tree of a session: it keeps every sampled token in the context it was sampled in.

    call      render the whole conversation; walk down the turns whose text it begins with
              prompt ids = ids of that path + ids of the rest of the text, the tail
    commit    a turn below it: the tail is given, the completion sampled
    end       the path to each leaf is a sequence to train on (`sequences.py`)

Text decides, because the chat template alone defines what the policy sees. Where the text is the same, the
sampled ids stand for it. Where it differs, the client or the template changed something (edited, dropped,
summarised, asked again), and the rest is encoded: a branch, which is correct for any change.
"""

from collections import deque
from dataclasses import dataclass

import msgspec
import numpy as np

from freerun.chat.echoes import Meaning, meaning_of, recognise
from freerun.chat.history import (
    opens_thinking,
    own_words,
    returned_messages,
    tail_by_difference,
    tail_by_sentinel,
)
from freerun.chat.messages import AUTO, NONE, REQUIRED, ChatCall, Message, ToolCall
from freerun.chat.rendering import Renderer
from freerun.chat.sequences import SessionSequence, sequence_to, sequences_of
from freerun.chat.tool_formats import read
from freerun.chat.turns import Conversation, Said, Turn
from freerun.errors import ChatError, TemplateRefusedError
from freerun.types import Completion, Ints

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class ChatPrompt:
    """The context of a call, found in the tree."""

    call: ChatCall
    conversation: Conversation
    parent: Turn | None
    given_ids: Ints
    given_text: str
    opening: str
    """The forced beginning of a tool call; the last part of the given text."""
    token_ids: Ints
    """The whole prompt."""
    is_thinking: bool
    """Whether the prompt ends inside thinking."""

    @property
    def num_shared(self) -> int:
        """Number of leading tokens that an earlier turn had."""
        return len(self.token_ids) - len(self.given_ids)


@dataclass(frozen=True)
class _Place:
    """Where a conversation continues, and with what text."""

    turn: Turn | None
    tail: str


class SessionTree:
    def __init__(self, renderer: Renderer, *, now: float) -> None:
        self._renderer = renderer
        self._tokenizer = renderer.tokenizer
        self._now = now
        """The date for templates that print it: one date for the whole session."""
        self._roots: list[Turn] = []
        self._turns: dict[Meaning, list[Turn]] = {}

    async def prompt(self, call: ChatCall) -> ChatPrompt:
        """The ids for a call; raises TemplateRefusedError."""
        conversation = recognise(call, self._turns)
        place = await self._place(conversation)
        is_thinking = opens_thinking(place.tail)
        opening = self._opening(call, is_thinking=is_thinking)
        text = place.tail + opening
        if place.turn is None:
            given_ids = token_ids = self._renderer.encode_first(text)
        else:
            path = place.turn.token_ids
            given_ids = self._renderer.encode_after(text, path)
            token_ids = np.concatenate([path, given_ids])
        if not len(token_ids):
            raise ChatError("the conversation is empty; a prompt needs at least one token")
        return ChatPrompt(
            call, conversation, place.turn, given_ids, text, opening, token_ids, is_thinking and not opening
        )

    async def _place(self, conversation: Conversation) -> _Place:
        traits = await self._renderer.traits()
        last = conversation.last_own
        try:
            text = await self._renderer.render(own_words(conversation, traits), conversation.tools, now=self._now)
            place = self._walk(text, traits.closes)
        except TemplateRefusedError:
            place = None
        if last is not None:
            turn = conversation.items[last]
            assert isinstance(turn, Turn)
            if place is None or place.turn is None or place.turn.depth < turn.depth:
                tail = await self._tail(conversation, last, turn)
                place = place if tail is None else _Place(turn, tail)
        if place is None:
            text = await self._renderer.render(returned_messages(conversation), conversation.tools, now=self._now)
            place = self._walk(text, traits.closes)
        return place

    async def _tail(self, conversation: Conversation, position: int, turn: Turn) -> str | None:
        """The text after a turn whose own text is not repeated in the rendering."""
        tail = await tail_by_difference(self._renderer, conversation, position, turn, now=self._now)
        if tail is None and self._renderer.history == "append":
            tail = await tail_by_sentinel(self._renderer, conversation, position, turn, now=self._now)
        return tail

    def _walk(self, text: str, closes: tuple[str, ...]) -> _Place:
        """The deepest turn whose path is a prefix of the text; of equal ones the newest."""
        furthest, deepest = 0, None
        waiting = deque((0, root) for root in self._roots)
        while waiting:
            at, turn = waiting.popleft()
            end = self._end_of(turn, text, at, closes)
            if end is not None:
                waiting.extend((end, child) for child in turn.children)
                if end >= furthest:
                    furthest, deepest = end, turn
        return _Place(deepest, text[furthest:])

    def _end_of(self, turn: Turn, text: str, at: int, closes: tuple[str, ...]) -> int | None:
        """Where `text` continues after a turn that starts at `at`; None if `text` differs there."""
        if not text.startswith(turn.given_text, at):
            return None
        at += len(turn.given_text)
        if not text.startswith(turn.sampled_text, at):
            return None
        at += len(turn.sampled_text)
        if not turn.said.close:
            # A turn that was cut off after "<" is not the beginning of a special token.
            return None if self._tokenizer.is_inside_special_token(text, at) else at
        if text.startswith(turn.said.close, at):
            return at + len(turn.said.close)
        # The policy ended its turn with an end token that is not the template's: the text has both.
        return at if text.startswith(closes, at) else None

    def _opening(self, call: ChatCall, *, is_thinking: bool) -> str:
        """The beginning of the tool call that the client requires."""
        if call.tool_choice in (AUTO, NONE):
            return ""
        name = "" if call.tool_choice == REQUIRED else call.tool_choice
        names = [tool.name for tool in call.tools]
        if not names or (name and name not in names):
            raise ChatError(
                f'tool_choice = "{call.tool_choice}", and the tools are ({", ".join(names)}); '
                "name one of them, or set auto"
            )
        opening = self._renderer.tool_format.opening(self._tokenizer.as_text(name))
        return f"\n</think>\n\n{opening}" if is_thinking else opening

    def commit(self, prompt: ChatPrompt, completion: Completion, *, number: int) -> Turn:
        """Add a completion of a prompt as call `number` of the session."""
        _check(completion, number)
        ids = completion.token_ids
        close = self._tokenizer.end_name(int(ids[-1]))
        sampled_text = self._tokenizer.rendered(ids[:-1] if close else ids)
        spans = tuple(msgspec.structs.replace(span, call=number) for span in completion.spans)
        turn = Turn(
            parent=prompt.parent,
            conversation=prompt.conversation,
            given_ids=prompt.given_ids,
            given_text=prompt.given_text,
            completion=msgspec.structs.replace(completion, spans=spans),
            sampled_text=sampled_text,
            said=Said(prompt.opening + sampled_text, close),
            message=self._message(prompt, completion, number),
        )
        (self._roots if prompt.parent is None else prompt.parent.children).append(turn)
        self._turns.setdefault(meaning_of(turn.message), []).append(turn)
        return turn

    def _message(self, prompt: ChatPrompt, completion: Completion, number: int) -> Message:
        """The completion as a message, up to the client's stop string."""
        text = self._tokenizer.decode(completion.token_ids)
        cut = min((text.find(stop) for stop in prompt.call.stop if stop in text), default=len(text))
        tools = () if prompt.call.tool_choice == NONE else prompt.call.tools
        said = self._tokenizer.shown(prompt.opening) + text[:cut]
        reading = read(said, self._renderer.tool_format, tools, is_thinking=prompt.is_thinking)
        calls = tuple(
            ToolCall(id=_tool_call_id(number, index), name=call.name, arguments=call.arguments)
            for index, call in enumerate(reading.calls)
        )
        return Message(role="assistant", content=reading.content, thinking=reading.thinking, tool_calls=calls)

    def sequences(self) -> tuple[SessionSequence, ...]:
        return sequences_of(self._roots, self._tokenizer)

    def sequence_to(self, number: int) -> SessionSequence:
        return sequence_to(self._roots, number, self._tokenizer)


def _check(completion: Completion, number: int) -> None:
    lengths = {
        len(completion.token_ids),
        len(completion.logprobs),
        sum(span.num_tokens for span in completion.spans),
    }
    if lengths == {0}:
        raise ChatError(f"call {number}: the engine returned a completion without tokens; it is not trained on")
    if len(lengths) > 1:
        raise ChatError(f"call {number}: tokens, logprobs and spans differ in number: {sorted(lengths)}")


def _tool_call_id(number: int, index: int) -> str:
    """Nine letters and digits, as Mistral's templates want; the same whenever the session is repeated."""
    return f"c{_base36(number):0>5}{_base36(index):0>3}"


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits
