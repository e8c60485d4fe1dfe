"""The salts of vLLM's prefix cache, which decide which requests share cached prompts.

vLLM caches prompts by their tokens and a salt, regardless of the weights that computed them. Requests of one
version share a salt. If caches are kept over loads (`engine.kv_on_load = "keep"`), a session keeps the salt of
its first version: its later turns find what the earlier ones computed, but sessions that begin later do not.
"""


class CacheSalts:
    """The salt of each request; remembers the active sessions."""

    def __init__(self, *, keeps_cache: bool) -> None:
        self._keeps_cache = keeps_cache
        self._began_with: dict[int, int | None] = {}

    def salt(self, session: int | None, version: int | None) -> str:
        """The salt of a request that is submitted under this version."""
        if self._keeps_cache and session is not None:
            version = self._began_with.setdefault(session, version)
        return f"version {version}"

    def end_session(self, session: int) -> None:
        self._began_with.pop(session, None)
