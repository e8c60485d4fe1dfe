"""Turns a task's prompt into the text and tokens that a model is given.

    raw     system prompt ¶ solved prompt ¶ solved prompt ¶ the prompt's text
    chat    system, user, assistant, user, assistant, user    through the model's own chat template

Solved prompts are worded exactly like the actual prompt.

Special tokens come from the chat template or, in raw prompts, from `data.template`, `data.shot_template` and
`data.system_prompt`. A special token spelled in the data is plain text.
"""

from collections.abc import Sequence
from typing import Any, Literal

from freerun.config.data import DataConfig
from freerun.data.chat_template import TemplateMessage
from freerun.data.task_prompt import TaskPrompt
from freerun.data.tokenizer import Tokenizer
from freerun.errors import DataError
from freerun.types import Prompt, encode

_PARAGRAPH = "\n\n"
RowUse = Literal["none", "graders", "sessions"]
"""Who uses the rows that prompts are made from: none, functions of the user, or sessions, which get all rows."""


class Wording:
    """Makes prompts from a task's prompts; the text before each of them is the same for all."""

    def __init__(
        self,
        config: DataConfig,
        shots: Sequence[TaskPrompt],
        tokenizer: Tokenizer,
        *,
        row_use: RowUse = "none",
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._row_use = row_use
        self._shots = [(shot.text, _completion_of(shot)) for shot in shots]
        self._examples = [] if config.use_chat_template else [self._example(shot) for shot in shots]

    def of(self, prompt: TaskPrompt) -> Prompt:
        """The prompt as the model sees it; the stream sets its ordinal."""
        if self._config.use_chat_template:
            text = self._tokenizer.render_chat(self._messages(prompt))
            # The template prints the bos token itself if the model needs one.
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        else:
            text = self._raw_text(prompt)
            token_ids = self._tokenizer.encode(text)
        text = self._tokenizer.shown(text)
        return Prompt(
            ordinal=0,
            key=self._key(prompt),
            text=text,
            answer=prompt.answer,
            token_ids=token_ids,
            row=self._row(prompt),
            grader=self._config.grader,
        )

    def _row(self, prompt: TaskPrompt) -> dict[str, Any]:
        if self._row_use == "sessions":
            return _sendable(prompt)
        return dict(prompt.row) if self._row_use == "graders" else {}

    def _key(self, prompt: TaskPrompt) -> str:
        """A key for people: a row's key already names its file, other keys get the task's name."""
        return prompt.key if self._config.reads_rows else f"{self._config.task}:{prompt.key}"

    def _messages(self, prompt: TaskPrompt) -> list[TemplateMessage]:
        messages = []
        if self._config.system_prompt:
            messages.append({"role": "system", "content": self._config.system_prompt})
        for text, completion in self._shots:
            messages.append({"role": "user", "content": text})
            messages.append({"role": "assistant", "content": completion})
        return [*messages, {"role": "user", "content": prompt.text}]

    def _raw_text(self, prompt: TaskPrompt) -> str:
        system = [self._config.system_prompt] if self._config.system_prompt else []
        asked = self._with_data_as_text(prompt.key, prompt.text, self._config.template)
        return _PARAGRAPH.join([*system, *self._examples, asked])

    def _example(self, shot: TaskPrompt) -> str:
        text = self._with_data_as_text(shot.key, shot.text, self._config.template)
        completion = self._with_data_as_text(shot.key, _completion_of(shot), self._config.shot_template)
        return _joined(text, completion)

    def _with_data_as_text(self, key: str, text: str, template: str) -> str:
        """`text`, in which only the template's special tokens are special."""
        tokens = self._tokenizer.special_tokens_in(template)
        if not tokens:
            return self._tokenizer.as_text(text)
        if self._tokenizer.special_tokens_in(text) != tokens:
            raise DataError(
                f'{key}: spells a special token of the model, as the recipe\'s template does ("{tokens[0]}"), so '
                "they cannot be told apart; remove it from the row, or set data.use_chat_template = true"
            )
        return text


def _sendable(prompt: TaskPrompt) -> dict[str, Any]:
    """The row of a prompt, in a form that an agent worker can receive."""
    row = dict(prompt.row)
    try:
        encode(row)
    except (TypeError, ValueError, NotImplementedError, OverflowError) as error:
        raise DataError(
            f"{prompt.key}: a field cannot be sent to an agent worker ({error}); use texts, numbers, lists, dicts"
        ) from error
    return row


def _completion_of(shot: TaskPrompt) -> str:
    completion = shot.shot or shot.answer
    if not completion.strip():
        raise DataError(
            f"{shot.key}: has no completion to show; set data.num_shots = 0, or "
            "data.shot_template to a field that is not empty"
        )
    return completion


def _joined(text: str, completion: str) -> str:
    """Text and completion, joined by a space where a model would put one too."""
    has_space = text[-1:].isspace() or completion[:1].isspace()
    return f"{text}{completion}" if has_space else f"{text} {completion}"
