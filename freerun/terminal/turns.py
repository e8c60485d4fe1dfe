"""Splits a recorded session into pieces: the policy's turns and what it was given between them.

The store keeps the text of a sequence as one string, and its tokens with spans. The run's own tokenizer decodes
the tokens of each piece.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from freerun.data.tokenizer import Tokenizer
from freerun.events.schema import TrajectoryRow
from freerun.types import Span


@dataclass(frozen=True)
class SessionPiece:
    """Consecutive tokens of one call, or given ones."""

    call: int | None
    """Number of the call; None for given tokens."""
    versions: tuple[int, ...]
    """Versions of the weights that sampled them, in order."""
    num_tokens: int
    text: str


def is_session(row: TrajectoryRow) -> bool:
    """Whether the policy was called more than once, or given something in between."""
    return any(span.version is None or span.call for span in row.spans)


def pieces_of(row: TrajectoryRow, tokenizer: Callable[[], Tokenizer | None]) -> list[SessionPiece] | None:
    """The pieces of a session; None for a plain completion, or without a tokenizer."""
    if not is_session(row) or (reads := tokenizer()) is None:
        return None
    pieces, begin = [], 0
    for call, grouped in groupby(row.spans, key=_call_of):
        spans = list(grouped)
        num_tokens = sum(span.num_tokens for span in spans)
        text = reads.shown(reads.rendered(row.token_ids[begin : begin + num_tokens]))
        versions = tuple(dict.fromkeys(span.version for span in spans if span.version is not None))
        pieces.append(SessionPiece(call=call, versions=versions, num_tokens=num_tokens, text=text))
        begin += num_tokens
    return pieces


def _call_of(span: Span) -> int | None:
    return None if span.version is None else span.call
