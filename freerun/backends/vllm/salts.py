"""The salts of vLLM's prefix cache: who may start from what others have computed.

vLLM caches prompts by their tokens and a salt, and does not ask which weights computed them. Requests of one
version share a salt. If caches are kept over loads (`engine.kv_on_load = "keep"`), a session keeps the salt of the
version that it began with: its later turns find what the earlier ones computed, and no session that begins later
does.
"""


class CacheSalts:
    """The salt of each request; remembers the sessions that are under way."""

    def __init__(self, *, keeps_cache: bool) -> None:
        self._keeps_cache = keeps_cache
        self._began_with: dict[int, int | None] = {}

    def salt(self, session: int | None, version: int | None) -> str:
        """For a request that is submitted under this version."""
        if self._keeps_cache and session is not None:
            version = self._began_with.setdefault(session, version)
        return f"version {version}"

    def end_session(self, session: int) -> None:
        self._began_with.pop(session, None)
