"""What is true of every session, however its policy and its client behave.

    I1   every call is trained once, behind the ids that it was sampled behind
    I2   trained tokens are the sampled ones, each with its own logprob and version
    I4   a prompt is what the template prints for the messages, with the policy's own words in their place

(I3, one sequence for clients that only append, is for the templates that do not rewrite history.)
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import numpy as np
from fuzzed_sessions import Played

from freerun.chat.messages import ChatCall, Message, Tool
from freerun.chat.rendering import Renderer
from freerun.chat.turns import Said
from freerun.errors import ChatError
from freerun.types import Ints

T = TypeVar("T")


class _AtOnce(Executor):
    """Runs everything where it is asked for, so that overlapping calls always meet in the same order."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except ChatError as error:
            future.set_exception(error)
        return future


class RecordingRenderer(Renderer):
    """Remembers what the template printed for whole conversations."""

    def __init__(self, renderer: Renderer) -> None:
        super().__init__(renderer.tokenizer, history=renderer.history, use_chat_template=not renderer.is_plain)
        self._traits, self._thread = renderer._traits, _AtOnce()
        self.texts: dict[int, set[str]] = defaultdict(set)
        """By the number of messages."""

    async def render(
        self,
        items: Sequence[Message | Said],
        tools: Sequence[Tool],
        *,
        now: float,
        add_generation_prompt: bool = True,
    ) -> str:
        text = await super().render(items, tools, now=now, add_generation_prompt=add_generation_prompt)
        if add_generation_prompt:
            self.texts[len(items)].add(text)
        return text


def check_sequences(played: Played) -> int:
    """I1 and I2: every call is trained once, behind the ids it was sampled behind. The number of sequences."""
    trained: Counter[int] = Counter()
    sequences = played.session.sequences()
    for sequence in sequences:
        completion = sequence.completion
        ids = np.concatenate([sequence.prompt_token_ids, completion.token_ids])
        at, num_prompt = len(sequence.prompt_token_ids), len(sequence.prompt_token_ids)
        assert completion.is_sampled[[0, -1]].all()
        assert sum(span.num_tokens for span in completion.spans) == len(completion.token_ids)
        for span in completion.spans:
            if span.version is not None:
                expected = played.sampled[span.call]
                assert ids[:at].tolist() == played.prompts[span.call].tolist()
                assert ids[at : at + span.num_tokens].tolist() == expected.token_ids.tolist()
                logprobs = completion.logprobs[at - num_prompt : at - num_prompt + span.num_tokens]
                assert logprobs.tolist() == expected.logprobs.tolist()
                assert span.version == 100 + span.call
                trained[span.call] += 1
            at += span.num_tokens
        assert not completion.logprobs[~completion.is_sampled].any()
    assert trained == Counter(dict.fromkeys(played.sampled, 1))
    return len(sequences)


async def check_texts(played: Played, renderer: RecordingRenderer) -> None:
    """I4."""
    closes = (await renderer.traits()).closes
    known = {
        _text_of(np.concatenate([prompt, played.sampled[call].token_ids]), renderer)
        for call, prompt in played.prompts.items()
    }
    for call, ids in played.prompts.items():
        asked = played.asked[call]
        printed = renderer.texts[len(asked.messages)]
        prompts = _without_opening(_text_of(ids, renderer), asked, renderer)
        assert any(
            prompt in printed or _continues(prompt, known, asked.messages[-1], printed, closes, renderer)
            for prompt in prompts
        )


def _continues(
    prompt: str, known: set[str], last: Message, printed: set[str], closes: tuple[str, ...], renderer: Renderer
) -> bool:
    """Whether it is an earlier prompt, its completion, and from there the end of what is printed now."""
    before = max((text for text in known if prompt.startswith(text)), key=len, default="")
    tail = prompt.removeprefix(before)
    # Results of tools may be printed as JSON, or not at all.
    has_last = last.role != "user" or renderer.tokenizer.as_text(last.content).strip() in tail
    # A model may end its turn with a token that its template prints nowhere.
    spoken = before.removesuffix(next((close for close in closes if before.endswith(close)), ""))
    ends = (spoken[-3:], *closes)
    return bool(before) and has_last and any(_ends_a_turn(text, tail, ends) for text in printed)


def _ends_a_turn(text: str, tail: str, ends: tuple[str, ...]) -> bool:
    """Whether `tail` is the end of `text` from the end of a turn on."""
    head = text.removesuffix(tail)
    return text.endswith(tail) and (head.endswith(ends) or tail.lstrip().startswith(ends))


def _text_of(ids: Ints, renderer: Renderer) -> str:
    # Some tokenizers put a space before every text.
    return renderer.tokenizer.rendered(ids).removeprefix(" ")


def _without_opening(prompt: str, call: ChatCall, renderer: Renderer) -> list[str]:
    """The prompt before the beginning of a demanded call, which may have had to end thoughts first."""
    if call.tool_choice in ("auto", "none"):
        return [prompt]
    opening = renderer.tool_format.opening("" if call.tool_choice == "required" else call.tool_choice)
    assert prompt.endswith(opening)
    rendered = prompt.removesuffix(opening)
    return [rendered, rendered.removesuffix("\n</think>\n\n")]
