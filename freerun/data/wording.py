"""How a problem becomes the text and the tokens that a model is given.

    raw     system prompt ¶ solved problem ¶ solved problem ¶ the problem's text
    chat    system, user, assistant, user, assistant, user    through the model's own chat template

Solved problems are worded exactly like the one that is asked.

Special tokens come from the chat template, or, in raw prompts, from what the recipe itself spells in
`data.template`, `data.shot_template` and `data.system_prompt`. A special token's name in the data is text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freerun.config.data import DataConfig
from freerun.data.chat_template import Message
from freerun.data.problem import Problem
from freerun.data.tokenizer import Tokenizer
from freerun.errors import DataError
from freerun.types import Ints

_PARAGRAPH = "\n\n"


@dataclass(frozen=True)
class WordedProblem:
    """A problem as the model sees it."""

    problem: Problem
    text: str
    token_ids: Ints


class Wording:
    """The part of a prompt that is the same for all problems, and the way to add one."""

    def __init__(self, config: DataConfig, shots: Sequence[Problem], tokenizer: Tokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._shots = [(shot.text, _completion_of(shot)) for shot in shots]
        self._examples = [] if config.use_chat_template else [self._example(shot) for shot in shots]

    def of(self, problem: Problem) -> WordedProblem:
        if self._config.use_chat_template:
            text = self._tokenizer.render_chat(self._messages(problem))
            # The template prints the bos token itself, where the model wants one.
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        else:
            text = self._raw_text(problem)
            token_ids = self._tokenizer.encode(text)
        return WordedProblem(problem, self._tokenizer.shown(text), token_ids)

    def _messages(self, problem: Problem) -> list[Message]:
        messages = []
        if self._config.system_prompt:
            messages.append({"role": "system", "content": self._config.system_prompt})
        for text, completion in self._shots:
            messages.append({"role": "user", "content": text})
            messages.append({"role": "assistant", "content": completion})
        return [*messages, {"role": "user", "content": problem.text}]

    def _raw_text(self, problem: Problem) -> str:
        system = [self._config.system_prompt] if self._config.system_prompt else []
        asked = self._with_data_as_text(problem.key, problem.text, self._config.template)
        return _PARAGRAPH.join([*system, *self._examples, asked])

    def _example(self, shot: Problem) -> str:
        text = self._with_data_as_text(shot.key, shot.text, self._config.template)
        completion = self._with_data_as_text(shot.key, _completion_of(shot), self._config.shot_template)
        return _joined(text, completion)

    def _with_data_as_text(self, key: str, text: str, template: str) -> str:
        """`text`, where special tokens are those of the template that made it."""
        tokens = self._tokenizer.special_tokens_in(template)
        if not tokens:
            return self._tokenizer.as_text(text)
        if self._tokenizer.special_tokens_in(text) != tokens:
            raise DataError(
                f'{key}: spells a special token of the model, as the recipe\'s template does ("{tokens[0]}"), so '
                "they cannot be told apart; remove it from the row, or set data.use_chat_template = true"
            )
        return text


def _completion_of(shot: Problem) -> str:
    completion = shot.shot or shot.answer
    if not completion.strip():
        raise DataError(
            f"{shot.key}: there is nothing to show as its completion; set data.num_shots = 0, or "
            "data.shot_template to a field that is filled"
        )
    return completion


def _joined(text: str, completion: str) -> str:
    """A space between them, where a model would put one too."""
    has_space = text[-1:].isspace() or completion[:1].isspace()
    return f"{text}{completion}" if has_space else f"{text} {completion}"
