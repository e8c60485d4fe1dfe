"""The exception tree: every error that a user can cause or must act on is a `FreerunError`.

Messages say what was asked, the value, and what to do: lower case, no full stop. The command line prints them
without a traceback. Any other exception is a bug and keeps its traceback.
"""

EXIT_INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 plus the number of the signal, as in shells."""


class FreerunError(Exception):
    """Base class of errors that are reported to the user in one line."""


class ConfigError(FreerunError):
    """An invalid recipe or override."""


class DataError(FreerunError):
    """An unusable data file or row; names the file and the line."""


class ModelError(FreerunError):
    """An unreadable model directory, or an unsupported architecture."""


class RequestError(FreerunError):
    """A request that the engine can never serve, such as a prompt longer than the cache."""


class WeightsError(FreerunError):
    """Weights that arrived damaged, incomplete or with the wrong version."""


class CheckpointError(FreerunError):
    """A checkpoint that is missing, incomplete or differs from its manifest."""


class WorkerError(FreerunError):
    """A worker process that died, stopped responding or reported an error; carries its traceback."""


class RolloutError(FreerunError):
    """Too many rollouts or grades failed in a row; carries the last failure."""


class SessionUnratedError(RolloutError):
    """A live session that was not rated, which is not the same as a reward of 0."""


class PinLostError(RolloutError):
    """The pinned version of a request is lost: the last worker that held it died."""


class SandboxError(FreerunError):
    """A broken sandbox; never caused by the program in it."""


class ChatError(FreerunError):
    """A call of a session that is refused; the session continues unless it has ended."""


class TemplateRefusedError(ChatError, ModelError):
    """The chat template refuses these messages; carries its error."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        """The template's part of the message."""


class SessionEndedError(ChatError):
    """A call of a session that has ended."""


class TruncatedError(ChatError):
    """The session is at its limit of turns or tokens. An episode may catch it; otherwise the session is scored."""


class ContextLengthError(TruncatedError):
    """A conversation that leaves no room for a completion."""
