"""Finds out what a chat template expects, by rendering a few made-up messages before it is used.

Each question compares two renderings, which differ if the answer is no. If a template refuses the messages of a
question, for example because it knows no tools, the answer that is right for most templates is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from freerun.chat.messages import Message, Tool, ToolCall
from freerun.chat.positions import common_length, first_of
from freerun.chat.template_input import TemplateTraits
from freerun.chat.turns import Said
from freerun.data.tokenizer import Tokenizer
from freerun.errors import TemplateRefusedError

_THINKING_SIGNS = {"reasoning_content": "reasoning_content", "message.thinking": "thinking"}
"""Signs in the source of templates that read thinking, with the field they read it from."""
_WORD = "Zq7wordZq7"
"""A word that can be found again in rendered texts."""
_ARGUMENTS = f'{{"where":  "{_WORD}"}}'
"""Has an extra space, which is visible if the template prints the text unchanged."""
_TOOL = Tool(
    name="look",
    description="Look around.",
    parameters={"type": "object", "properties": {"where": {"type": "string", "description": "up or down"}}},
)
_ASKED = Message(role="user", content="What is there?")
_CALL = Message(role="assistant", tool_calls=(ToolCall(id="c00000000", name="look", arguments=_ARGUMENTS),))
_RESULT = Message(role="tool", tool_call_id="c00000000", name="look", content="The sky.")


class Render(Protocol):
    async def __call__(
        self,
        items: Sequence[Message | Said],
        tools: Sequence[Tool],
        traits: TemplateTraits,
        *,
        add_generation_prompt: bool = True,
    ) -> str: ...


async def probe(render: Render, source: str, tokenizer: Tokenizer) -> TemplateTraits:
    """The traits of the template with this source."""
    prober = _Prober(render, tokenizer)
    traits = TemplateTraits(
        thinking_key=next((key for sign, key in _THINKING_SIGNS.items() if sign in source), "")
    )
    traits = replace(traits, closes=await prober.closes(traits))
    traits = replace(traits, arguments_as_text=await prober.wants_arguments_as_text(traits))
    traits = replace(traits, takes_calls_verbatim=await prober.takes_calls_verbatim(traits))
    return replace(traits, shows_tools=await prober.shows_tools(traits))


@dataclass(frozen=True)
class _Prober:
    render: Render
    tokenizer: Tokenizer

    async def closes(self, traits: TemplateTraits) -> tuple[str, ...]:
        """The model's end tokens, and the special token that the template prints behind an answer."""
        names = self.tokenizer.end_names
        text = await self._try([_ASKED, Message(role="assistant", content=_WORD)], [], traits, opens=False)
        rest = text.rpartition(_WORD)[2]
        special = self.tokenizer.special_tokens_in(rest)
        close = special[:1] if special and rest.startswith(special[0]) else []
        return tuple(dict.fromkeys([*names, *close]))

    async def wants_arguments_as_text(self, traits: TemplateTraits) -> bool:
        as_text = replace(traits, arguments_as_text=True)
        text = await self._try([_ASKED, _CALL, _RESULT], [_TOOL], as_text)
        if _ARGUMENTS in text:
            return True
        from_object = await self._try([_ASKED, _CALL, _RESULT], [_TOOL], traits)
        return bool(text) and (_WORD not in from_object or "{'where'" in from_object)

    async def takes_calls_verbatim(self, traits: TemplateTraits) -> bool:
        """Whether a result is printed the same after a call written as text as after a structured call."""
        before = await self._try([_ASKED], [_TOOL], traits)
        with_call = await self._try([_ASKED, _CALL], [_TOOL], traits, opens=False)
        if _WORD not in with_call:
            return True  # it prints no structured calls: only as text are they visible
        written = with_call[common_length(before, with_call) :]
        end, _ = first_of(traits.closes, written)
        behind_text = await self._try([_ASKED, Said(written[:end], ""), _RESULT], [_TOOL], traits)
        behind_call = await self._try([_ASKED, _CALL, _RESULT], [_TOOL], traits)
        return behind_text.rpartition(_WORD)[1:] == behind_call.rpartition(_WORD)[1:]

    async def shows_tools(self, traits: TemplateTraits) -> bool:
        return _TOOL.description in await self._try([_ASKED], [_TOOL], traits)

    async def _try(
        self, items: Sequence[Message | Said], tools: Sequence[Tool], traits: TemplateTraits, *, opens: bool = True
    ) -> str:
        """The rendered text; empty if the template refuses the messages."""
        try:
            return await self.render(items, tools, traits, add_generation_prompt=opens)
        except TemplateRefusedError:
            return ""
