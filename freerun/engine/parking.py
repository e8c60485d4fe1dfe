"""Parked caches: what the turns of a session have computed, kept for its next one.

    turn 1   slot ██████████   finished ──copied out──► parked ██████████   (session, token ids, keys and values)
    turn 2   slot ██████████▒▒▒▒   ◄──copied in── as far as the token ids agree; only the rest is computed

Between its turns a session has no slot. A slot is contiguous, so parking and adopting are one strided copy each,
without pages. A session that branches has several parked caches; a turn adopts the one that agrees longest with
its prompt. No cache ever serves another session.

Knows nothing of versions: at a load the engine drops everything, or keeps it (`engine.kv_on_load`).

Shapes: N layers, 2 keys and values, K key/value heads, L positions, D head size.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from freerun.engine.cache import KVCache


@dataclass(frozen=True, eq=False)
class ParkedCache:
    """Keys and values of these tokens, outside the slots."""

    request_id: int
    """The request that computed them."""
    token_ids: np.ndarray
    keys_values: Tensor
    """N2KLD, one position for each token."""


class ParkedCaches:
    """Holds at most `max_tokens`; when they are full, the session that parked longest ago makes room first."""

    def __init__(self, cache: KVCache, *, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self.num_adopted_tokens = 0
        self._cache = cache
        self._of_session: dict[int, list[ParkedCache]] = {}
        """Sessions and the caches of each, both in the order of their last parking."""

    def park(self, session: int, request_id: int, tokens: list[int], *, slot: int) -> None:
        """Copy the cache of these tokens out of the slot; it replaces the ones that it continues."""
        if not 0 < len(tokens) <= self.max_tokens:
            return
        token_ids = np.array(tokens, dtype=np.int32)
        branches = self._take(session)
        for parked in branches:
            if _num_common(parked.token_ids, token_ids) < len(parked.token_ids):
                self._add(session, parked)
        while self.num_tokens + len(tokens) > self.max_tokens:
            self._drop_oldest()
        cached_N2KLD = self._cache.copy_out(slot, num_tokens=len(tokens))
        self._add(session, ParkedCache(request_id, token_ids, cached_N2KLD))

    def adopt(self, session: int, tokens: list[int], *, slot: int) -> int:
        """Copy the longest prefix of `tokens` that the session has parked into the slot; returns its length.

        At most all but the last token: computing that one gives the next one's logits.
        """
        if session not in self._of_session:
            return 0
        token_ids = np.array(tokens[:-1], dtype=np.int32)
        lengths = {_num_common(parked.token_ids, token_ids): parked for parked in self._of_session[session]}
        num_tokens = max(lengths)
        self._cache.copy_in(slot, lengths[num_tokens].keys_values[:, :, :, :num_tokens])
        self.num_adopted_tokens += num_tokens
        return num_tokens

    def end_session(self, session: int) -> None:
        """Drop what an ended session has parked, if anything."""
        self._take(session)

    def drop_request(self, session: int, request_id: int) -> None:
        """Drop what an aborted request has parked."""
        for parked in self._take(session):
            if parked.request_id != request_id:
                self._add(session, parked)

    def clear(self) -> None:
        self._of_session.clear()
        self.num_tokens = 0

    def _drop_oldest(self) -> None:
        session, parked = next(iter(self._of_session.items()))
        self.num_tokens -= len(parked.pop(0).token_ids)
        if not parked:
            del self._of_session[session]

    def _add(self, session: int, parked: ParkedCache) -> None:
        self._of_session.setdefault(session, []).append(parked)
        self.num_tokens += len(parked.token_ids)

    def _take(self, session: int) -> list[ParkedCache]:
        taken = self._of_session.pop(session, [])
        self.num_tokens -= sum(len(parked.token_ids) for parked in taken)
        return taken


def _num_common(one: np.ndarray, other: np.ndarray) -> int:
    """How many leading token ids are equal."""
    num_tokens = min(len(one), len(other))
    differs = one[:num_tokens] != other[:num_tokens]
    return int(differs.argmax()) if differs.any() else num_tokens
