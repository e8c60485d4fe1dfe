"""A few prompts, and a tokenizer that knows their characters."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from freerun.data.task_prompt import TaskPrompt, TaskPrompts
from freerun.data.tokenizer import Tokenizer
from freerun.types import Prompt

ALPHABET = "$^\n" + "".join(map(chr, range(32, 127))).replace("$", "").replace("^", "")


def make_tokenizer(directory: Path, alphabet: str = ALPHABET) -> Tokenizer:
    """One token per character, `^` before every prompt; unknown characters vanish."""
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    if "^" in alphabet:
        backend.post_processor = processors.TemplateProcessing(single="^ $A", special_tokens=[("^", 1)])
    directory.mkdir(exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    (directory / "chat_template.jinja").write_text(
        "^{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}>"
    )
    return Tokenizer.load(directory)


def prompts_of(num_training: int, num_held_out: int = 1) -> TaskPrompts:
    made = [TaskPrompt(key=str(i), text=f"{'x' * i}?", answer=str(i)) for i in range(num_training + num_held_out)]
    return TaskPrompts(training=tuple(made[:num_training]), held_out=tuple(made[num_training:]))


def content(prompt: Prompt) -> tuple[int, str, str, str, list[int]]:
    return prompt.ordinal, prompt.key, prompt.text, prompt.answer, prompt.token_ids.tolist()
