"""Renders conversations as text and ids: through the model's chat template, or plainly.

    chat     the template prints the messages and opens the assistant's turn
    plain    the contents are concatenated with nothing between them; the policy's turns as they were sampled

A template runs in its own process (`data/chat_template.py`), which answers in a millisecond but may take
seconds if the template is hostile. So it is called from a thread, and the event loop never waits. Plain
rendering stays on the event loop.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from freerun.chat.messages import Message, Tool
from freerun.chat.probing import probe
from freerun.chat.template_input import TemplateTraits, template_messages, template_tools
from freerun.chat.tool_formats import format_for
from freerun.chat.turns import Said
from freerun.config.rollout import History
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ChatError, ModelError, TemplateRefusedError
from freerun.types import Ints


class Renderer:
    """Renders for all sessions of a process."""

    def __init__(self, tokenizer: Tokenizer, *, history: History = "template", use_chat_template: bool) -> None:
        self.tokenizer = tokenizer
        self.history = history
        """Whether turns that the template later prints differently are shown so, or kept as they were sampled."""
        self._template = tokenizer.chat_template if use_chat_template else None
        self.tool_format = format_for("" if self._template is None else self._template.source)
        self._traits = None if use_chat_template else TemplateTraits()
        # A template has one process, which handles one request at a time.
        self._thread: Executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chat-template")

    @property
    def is_plain(self) -> bool:
        return self._template is None

    async def traits(self) -> TemplateTraits:
        """The template's traits; probed once."""
        if self._traits is None:
            assert self._template is not None
            self._traits = await probe(self._render, self._template.source, self.tokenizer)
        return self._traits

    async def render(
        self,
        items: Sequence[Message | Said],
        tools: Sequence[Tool],
        *,
        now: float,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text of a conversation, for `encode`; raises TemplateRefusedError."""
        if self._template is None:
            return self.tokenizer.joined(map(self._plain, items))
        return await self._render(
            items, tools, await self.traits(), now=now, add_generation_prompt=add_generation_prompt
        )

    def _plain(self, item: Message | Said) -> str:
        return item.text + item.close if isinstance(item, Said) else self.tokenizer.as_text(item.content)

    async def _render(
        self,
        items: Sequence[Message | Said],
        tools: Sequence[Tool],
        traits: TemplateTraits,
        *,
        now: float = 0.0,
        add_generation_prompt: bool = True,
    ) -> str:
        assert self._template is not None
        as_text = self.tokenizer.as_text
        render = partial(
            self._template.render,
            template_messages(items, traits, as_text),
            tools=template_tools(tools, as_text),
            add_generation_prompt=add_generation_prompt,
            now=now,
        )
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, render)
        except TemplateRefusedError as refusal:
            # The client has no recipe to fix.
            raise TemplateRefusedError(f"{refusal.reason}; change the messages", reason=refusal.reason) from None

    def encode_first(self, text: str) -> Ints:
        """Ids of a text that starts a conversation."""
        # The template prints the bos token itself if the model needs one.
        with _said_to_the_client():
            return self.tokenizer.encode(text, add_special_tokens=self.is_plain)

    def encode_after(self, text: str, path: Ints) -> Ints:
        """Ids of a text that continues a conversation of these ids."""
        with _said_to_the_client():
            return self.tokenizer.encode_after(text, int(path[-1]))


@contextmanager
def _said_to_the_client() -> Iterator[None]:
    """A client wrote the characters that the tokenizer does not know; do not tell it where the model is stored."""
    try:
        yield
    except ModelError as error:
        raise ChatError(
            f"the model's tokenizer cannot encode the conversation ({error.__cause__}); leave out the characters "
            "that it does not know"
        ) from error
