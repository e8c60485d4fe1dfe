"""The exception tree: every error a user can cause or must act on is a `FreerunError`.

Messages say what was asked, the value, and what to do: lower case, no full stop. The command line
prints them without a traceback; anything else that escapes is a defect of ours and keeps its traceback.
"""


class FreerunError(Exception):
    """Base of all errors that are reported to the user as one line."""


class ConfigError(FreerunError):
    """A recipe or an override that cannot be run."""


class DataError(FreerunError):
    """A data file or row that cannot be used; names the file and the line."""


class ModelError(FreerunError):
    """A model directory that cannot be read, or an architecture outside the family."""


class RequestError(FreerunError):
    """A generation request the engine can never serve, such as a prompt longer than the cache."""


class WeightsError(FreerunError):
    """Weights that arrived damaged, incomplete, or under the wrong version."""


class CheckpointError(FreerunError):
    """A checkpoint that is missing, incomplete or does not match its manifest."""


class WorkerError(FreerunError):
    """A worker process that died, fell silent or reported an error; carries its traceback."""


class RolloutError(FreerunError):
    """Too many rollouts or grades failed in a row; carries the last failure."""


class PinLostError(RolloutError):
    """The pinned version that a request names is gone with the last worker that held it."""


class SandboxError(FreerunError):
    """A sandbox that does not work: never the fault of the program in it."""
