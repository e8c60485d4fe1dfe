"""Tokenizers for the chat templates of real models: small vocabularies with each template's special tokens."""

import re
from collections.abc import Mapping, Sequence
from functools import cache

import tokenizers
from chat_templates import template_texts
from tokenizer_kinds import byte_level, sentencepiece

from freerun.chat.rendering import Renderer
from freerun.config.rollout import History
from freerun.data.chat_template import ChatTemplate
from freerun.data.template_process import Answer, CompiledTemplate, RenderChat, Start, body_of, frame_of
from freerun.data.tokenizer import Tokenizer
from freerun.errors import TemplateRefusedError

KINDS = {"byte_level": byte_level, "sentencepiece": sentencepiece}
_SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|\[/?[A-Z_]{3,}\]|<(?:start|end)_of_\w+>|<\|?turn\|?>"
)
_NAMES_BY_MODEL: dict[str, dict[str, str]] = {
    "llama": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "qwen": {"bos_token": "", "eos_token": "<|im_end|>"},
    "smollm2": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    "deepseek": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    "gemma": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "phi": {"bos_token": "<s>", "eos_token": "<|endoftext|>"},
    "cohere": {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"},
}
_ENDS_BY_MODEL = {
    "glm4": ["<|user|>", "<|observation|>"],
    "chatml": ["<|im_end|>"],
    "apertus": ["<|assistant_end|>"],
    "gptoss": ["<|end|>", "<|call|>"],
}
"""End tokens that a model's files name, beside that of its template."""
_WORD = "Zq7answerZq7"


class TemplateHere(ChatTemplate):
    """A template that is rendered in this process: ten thousand sessions need no protection, but time."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        super().__init__(source, origin="chat_template.jinja", special_tokens=special_tokens)
        self._compiled = CompiledTemplate(Start(source, dict(special_tokens)))

    def _ask(self, request: RenderChat) -> Answer:
        return self._compiled.render(body_of(frame_of(request)[4:], RenderChat))


@cache
def renderer_for(name: str, kind: str, history: History = "template") -> Renderer:
    """Of the template `name` with a tokenizer of this kind."""
    return Renderer(tokenizer_for(name, kind), history=history, use_chat_template=True)


@cache
def tokenizer_for(name: str, kind: str) -> Tokenizer:
    source = template_texts()[name]
    names = special_names(name)
    close = _close(TemplateHere(source, names))
    ends = [
        close,
        *next((given for model, given in _ENDS_BY_MODEL.items() if model in name), []),
        names["eos_token"],
    ]
    found = dict.fromkeys([*_SPECIAL.findall(source), *names.values(), *ends])
    backend = _backend(kind, [text for text in found if text])
    ids = [backend.token_to_id(text) for text in dict.fromkeys(ends) if text]
    return Tokenizer(
        backend,
        stop_token_ids=tuple(i for i in ids if i is not None),
        chat_template=TemplateHere(source, names),
        origin=name,
    )


def special_names(template: str) -> dict[str, str]:
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return names | next((given for model, given in _NAMES_BY_MODEL.items() if model in template), {})


def _backend(kind: str, special: Sequence[str]) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_str(_trained(kind))
    backend.add_special_tokens(list(special))
    return backend


@cache
def _trained(kind: str) -> str:
    return KINDS[kind]().to_str()


def _close(template: ChatTemplate) -> str:
    """The special token behind an answer."""
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _WORD}]
    try:
        rest = template.render(messages, add_generation_prompt=False).rpartition(_WORD)[2]
    except TemplateRefusedError:
        return ""
    match = re.match(rf"\s*({_SPECIAL.pattern}|</s>|<eos>)", rest)
    return match[1] if match else ""
