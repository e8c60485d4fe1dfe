"""Parked caches: keys and values that a session's turns have computed, kept for its next turn.

    turn 1   slot ██████████   finished ──copied out──► parked ██████████   (session, token ids, keys and values)
    turn 2   slot ██████████▒▒▒▒   ◄──copied in── as far as the token ids agree; only the rest is computed

A session has no slot between its turns. A slot is contiguous, so parking and adopting are strided copies,
without pages. A turn parks only what it has computed: what it adopted is already parked. A session that
branches has several parked caches; a turn adopts the one that shares the longest prefix with its prompt. A
cache never serves another session.

It knows nothing about versions: at a load the engine drops everything, or keeps it (`engine.kv_on_load`).

Shapes: N layers, 2 keys and values, K key/value heads, L positions, D head size.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from freerun.engine.cache import KVCache


@dataclass(frozen=True, eq=False)
class ParkedCache:
    """Keys and values of these tokens, outside the slots."""

    request_id: int
    """The request that computed them."""
    number: int
    """Unique among the engine's parked caches."""
    token_ids: np.ndarray
    pieces: tuple[Tensor, ...]
    """Tensors of shape N2KLD, one per turn, in order: what each turn has computed."""


@dataclass(frozen=True)
class Adopted:
    """What a turn starts with: the first tokens of a parked cache."""

    number: int
    num_tokens: int


class ParkedCaches:
    """Holds at most `max_tokens`; when full, the session that parked least recently makes room first."""

    def __init__(self, cache: KVCache, *, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self.num_adopted_tokens = 0
        self._cache = cache
        self._numbers = itertools.count()
        self._of_session: dict[int, list[ParkedCache]] = {}
        """The caches of each session; sessions and caches are in the order of their last parking."""

    def park(
        self, session: int, request_id: int, tokens: list[int], *, slot: int, adopted: Adopted | None = None
    ) -> None:
        """Copy the cache of these tokens out of the slot; it replaces the parked caches that it continues.

        The first tokens may be `adopted`: a whole cache that is still parked is not copied again.
        """
        if not 0 < len(tokens) <= self.max_tokens:
            return
        token_ids = np.array(tokens, dtype=np.int32)
        pieces: tuple[Tensor, ...] = ()
        for parked in self._take(session):
            if _num_common(parked.token_ids, token_ids) < len(parked.token_ids):
                self._add(session, parked)
            elif adopted == Adopted(parked.number, len(parked.token_ids)):
                pieces = parked.pieces
        while self.num_tokens + len(tokens) > self.max_tokens:
            self._drop_oldest()
        begin = sum(piece.shape[3] for piece in pieces)
        if begin < len(tokens):
            pieces += (self._cache.copy_out(slot, begin=begin, end=len(tokens)),)
        self._add(session, ParkedCache(request_id, next(self._numbers), token_ids, pieces))

    def adopt(self, session: int, tokens: list[int], *, slot: int) -> Adopted | None:
        """Copy the longest prefix of `tokens` that the session has parked into the slot.

        The last token is never copied: computing it gives the next token's logits.
        """
        if session not in self._of_session:
            return None
        token_ids = np.array(tokens[:-1], dtype=np.int32)
        lengths = {_num_common(parked.token_ids, token_ids): parked for parked in self._of_session[session]}
        num_tokens = max(lengths)
        if num_tokens == 0:
            return None
        self._copy_in(slot, lengths[num_tokens].pieces, num_tokens)
        self.num_adopted_tokens += num_tokens
        return Adopted(lengths[num_tokens].number, num_tokens)

    def _copy_in(self, slot: int, pieces: tuple[Tensor, ...], num_tokens: int) -> None:
        begin = 0
        for piece in pieces:
            if begin < num_tokens:
                self._cache.copy_in(slot, piece[:, :, :, : num_tokens - begin], begin=begin)
            begin += piece.shape[3]

    def end_session(self, session: int) -> None:
        """Drop what an ended session has parked."""
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
    """Length of the common prefix of two lists of token ids."""
    num_tokens = min(len(one), len(other))
    differs = one[:num_tokens] != other[:num_tokens]
    return int(differs.argmax()) if differs.any() else num_tokens
