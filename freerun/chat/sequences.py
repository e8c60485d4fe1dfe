"""Turns a session into the sequences that the trainer gets.

    turns  a ── b ── c        sequences   [a's prompt] a given b given c
            └── d                         [a's prompt, a, given] d

Each path from the root to a leaf is one sequence. A turn shared by several paths is trained in the first of
them and is context in the others, so every sampled token is trained once, after the ids it was sampled after.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from freerun.chat.turns import Turn
from freerun.data.tokenizer import Tokenizer
from freerun.types import Completion, Ints, Span


@dataclass(frozen=True)
class SessionSequence:
    """Tokens to train on: the completion starts and ends with sampled tokens, with given ones between turns."""

    prompt_token_ids: Ints
    completion: Completion


def sequences_of(roots: Sequence[Turn], tokenizer: Tokenizer) -> tuple[SessionSequence, ...]:
    """One sequence for each leaf below these turns, older branches first."""
    trained: set[Turn] = set()
    sequences = []
    for leaf in _leaves(roots):
        path = leaf.path()
        num_shared = sum(turn in trained for turn in path)
        trained.update(path)
        sequences.append(_sequence(path[:num_shared], path[num_shared:], tokenizer))
    return tuple(sequences)


def sequence_to(roots: Sequence[Turn], number: int, tokenizer: Tokenizer) -> SessionSequence:
    """Only the path to the turn of this call, with all its sampled tokens trained."""
    waiting = list(roots)
    while waiting:
        turn = waiting.pop()
        if turn.completion.spans[0].call == number:
            return _sequence((), turn.path(), tokenizer)
        waiting += turn.children
    raise ValueError(f"no turn of this session is call {number}")


def _leaves(roots: Sequence[Turn]) -> Iterator[Turn]:
    waiting = list(reversed(roots))
    while waiting:
        turn = waiting.pop()
        waiting += reversed(turn.children)
        if not turn.children:
            yield turn


def _sequence(shared: Sequence[Turn], own: Sequence[Turn], tokenizer: Tokenizer) -> SessionSequence:
    first, *later = own
    before = [ids for turn in shared for ids in (turn.given_ids, turn.completion.token_ids)]
    token_ids, logprobs = [first.completion.token_ids], [first.completion.logprobs]
    spans, texts = list(first.completion.spans), [first.completion.text]
    for turn in later:
        num_given = len(turn.given_ids)
        token_ids += [turn.given_ids, turn.completion.token_ids]
        logprobs += [np.zeros(num_given, np.float32), turn.completion.logprobs]
        spans += [Span(None, num_given)] if num_given else []
        spans += turn.completion.spans
        texts += [tokenizer.shown(turn.given_text), turn.completion.text]
    completion = Completion(
        token_ids=np.concatenate(token_ids),
        logprobs=np.concatenate(logprobs),
        spans=tuple(spans),
        finish_reason=own[-1].completion.finish_reason,
        text="".join(texts),
    )
    return SessionSequence(np.concatenate([*before, first.given_ids]), completion)
