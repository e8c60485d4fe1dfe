"""HTTP access to the policy for the agents of a worker: a gateway that opens when an episode first asks for it.

Its package, which needs the extra `agents`, is imported only then. Every session has its own key, and the calls
made with it are recorded in that session. The key ends with the session.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from freerun.chat.session import ChatSession
from freerun.errors import ConfigError
from freerun.rollout.episode import Endpoint
from freerun.workers.agent_messages import StartAgents

if TYPE_CHECKING:
    from freerun.gateway.sessions import SessionKeys


def check_web_server() -> None:
    """Raise `ConfigError` if the extra `agents` is not installed."""
    try:
        import freerun.gateway.server  # noqa: F401 - only whether it can be
    except ImportError as error:
        raise ConfigError(
            f"rollout.command and policy.base_url need a web server ({error}); pip install 'freerun[agents]'"
        ) from error


class AgentEndpoint:
    """One per worker; used only in the worker's event loop."""

    def __init__(self, start: StartAgents) -> None:
        self._start = start
        self._opened: tuple[str, SessionKeys] | None = None

    def open(self) -> tuple[str, "SessionKeys"]:
        """Start the gateway if it is not listening yet; returns its base URL and the keys of its sessions."""
        if self._opened is None:
            check_web_server()
            from freerun.gateway.server import Gateway
            from freerun.gateway.sessions import SessionKeys

            config = self._start.gateway
            keys = SessionKeys(self._start.model_name, key=config.key)
            gateway = Gateway(keys, sampling=self._start.sampling, address=config.address, key=config.key)
            self._opened = gateway.open(), keys
        return self._opened

    @contextlib.contextmanager
    def of_session(self, session: ChatSession) -> Iterator[Callable[[], Endpoint]]:
        """A function that returns the episode's endpoint, valid for the duration of its session."""
        given: list[Endpoint] = []

        def endpoint() -> Endpoint:
            if not given:
                url, keys = self.open()
                given.append(Endpoint(url, keys.add(session)))
            return given[0]

        try:
            yield endpoint
        finally:
            for known in given:
                self.open()[1].remove(known.api_key)
