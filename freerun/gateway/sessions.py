"""Which session answers a call: the gateway's view of sessions, and the session directory of a training run.

    a run:       one key for each session, made here
    freerun serve:  one key for all; its directory finds the session of a conversation, or makes one

The gateway holds a session only while a call of it runs.
"""

import secrets
from collections.abc import Awaitable
from typing import Protocol

from freerun.chat.messages import ChatCall, Reply
from freerun.errors import SessionEndedError

_KEY_BYTES = 24
_MAX_ENDED = 4096
"""Number of ended sessions whose keys are remembered; an older key counts as unknown."""


def random_key(prefix: str = "sk-") -> str:
    """A key that cannot be guessed."""
    return prefix + secrets.token_urlsafe(_KEY_BYTES)


class Session(Protocol):
    """Answers calls; a `ChatSession`."""

    def reply(self, call: ChatCall) -> Awaitable[tuple[Reply, ...]]: ...


class SessionDirectory(Protocol):
    """Finds the session for a call."""

    @property
    def model_name(self) -> str:
        """The only model name that clients may ask for."""
        ...

    def accepts(self, key: str) -> bool:
        """Whether the key may be used at all; called before the body of the request is read."""
        ...

    def find(self, key: str, call: ChatCall) -> Session:
        """The session that answers the call, which may be a new one. Raises `SessionEndedError`.

        A call with `is_retry` belongs to the session of the call it repeats.
        """
        ...


class SessionKeys:
    """One secret key for each session of a run."""

    def __init__(self, model_name: str, *, key: str = "") -> None:
        self.model_name = model_name
        self._prefix = f"{key}." if key else "sk-"
        self._sessions: dict[str, Session] = {}
        self._ended: dict[str, None] = {}

    def add(self, session: Session) -> str:
        """Create the key of a session that begins."""
        key = random_key(self._prefix)
        self._sessions[key] = session
        return key

    def remove(self, key: str) -> None:
        """Note the end of a session: from now on its key is refused with the reason."""
        if self._sessions.pop(key, None) is None:
            return
        self._ended[key] = None
        while len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def accepts(self, key: str) -> bool:
        return key in self._sessions or key in self._ended

    def find(self, key: str, call: ChatCall) -> Session:
        session = self._sessions.get(key)
        if session is None:
            raise SessionEndedError("the session of this key has ended; its episode is over")
        return session
