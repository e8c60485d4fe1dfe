"""Chat templates: turn messages into the text format that the model was trained on.

A template comes with a model from the internet, so it runs in a separate process with limited time and memory
(`template_process.py`). The process starts with the first rendering. It ends after some idle seconds, when the
template is garbage collected, or with this process.
"""

import os
import signal
import socket
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from freerun.data.template_process import BUDGET_SECONDS, IDLE_STATUS, Answer, RenderChat, Start, frame_of, receive
from freerun.errors import ModelError, TemplateRefusedError
from freerun.processes.interpreter import python_command
from freerun.processes.worker_process import SECRETS

TemplateMessage = Mapping[str, Any]
"""`role` ("user", "assistant", "system", "tool") and `content`; and others, such as `tool_calls`."""

ANSWER_SECONDS = 120.0
"""Wall-clock limit, for a machine so busy that processor time hardly advances."""


class ChatTemplate:
    """A template and the special tokens it may print; compiled at first use."""

    def __init__(self, source: str, *, origin: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._origin = origin
        self._start = frame_of(Start(source, dict(special_tokens)))
        self._process: _Process | None = None
        self._defect = ""
        """Why the template is no longer used: it does not compile, or it exceeded its limits."""

    def render(
        self,
        messages: Sequence[TemplateMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        now: float | None = None,
    ) -> str:
        """The conversation as text, with or without the start of the assistant's turn.

        Not thread-safe.
        """
        schemas = [dict(tool) for tool in tools] or None
        request = RenderChat([dict(message) for message in messages], add_generation_prompt, schemas, now)
        answer = Answer(failure=self._defect) if self._defect else self._ask(request)
        if not answer.failure:
            return answer.text
        told = (
            f"{self._origin}: the chat template {answer.failure}; repair it or set data.use_chat_template = false"
        )
        if answer.is_refusal:
            raise TemplateRefusedError(told, reason=f"the chat template {answer.failure}")
        raise ModelError(told)

    def _ask(self, request: RenderChat) -> Answer:
        try:
            frame = frame_of(request)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            return Answer(failure=f"cannot be given these messages ({error})", is_refusal=True)
        while True:
            try:
                if self._process is None:
                    self._process = _Process()
                    compiled = self._process.ask(self._start)
                    self._defect = compiled.failure
                return compiled if self._defect else self._process.ask(frame)
            except _ProcessEndedError as end:
                self._process = None
                if end.was_idle:
                    continue
                self._defect = str(end)
                return Answer(failure=self._defect)


class _ProcessEndedError(Exception):
    """The process has ended; the message continues a sentence that begins with "the chat template"."""

    def __init__(self, status: int, *, was_silent: bool) -> None:
        self.was_idle = status == IDLE_STATUS
        if was_silent:
            super().__init__(f"gives no answer within {ANSWER_SECONDS:.0f} s")
        elif status == -signal.SIGPROF:
            super().__init__(f"needs more than {BUDGET_SECONDS:.0f} s of processor time")
        else:
            super().__init__(f"ends the process that renders it (status {status})")


class _Process:
    """A process for one template; killed when this object is garbage collected."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(ANSWER_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                python_command("freerun.data.template_process"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if name not in SECRETS},
                start_new_session=True,
            )
        self._end = weakref.finalize(self, _end, self._process, self._socket)

    def ask(self, frame: bytes) -> Answer:
        was_silent = False
        try:
            self._socket.sendall(frame)
            if (answer := receive(self._socket, Answer)) is not None:
                return answer
            self._process.wait()
        except TimeoutError:
            was_silent = True
        except ConnectionError:
            self._process.wait()
        self._end()
        raise _ProcessEndedError(self._process.returncode, was_silent=was_silent)


def _end(process: subprocess.Popen[bytes], sock: socket.socket) -> None:
    process.kill()
    process.wait()
    sock.close()
