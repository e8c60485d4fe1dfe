"""One running completion, and the group of completions that one request asks for.

A sequence consists of its tokens and how many of them are in the cache. This determines the engine's work: one
missing token is a decode step, more are a prefill, and with none missing the next token can be sampled. A weight
load, a preemption and a new prompt differ only in how many tokens are missing.
"""

from dataclasses import dataclass

import numpy as np

from freerun.engine.parking import Adopted
from freerun.types import Completion, FinishReason, Request, Span


@dataclass(frozen=True, eq=False)
class Prefix:
    """One computation of a prompt's keys and values; sequences that share it have the same bits."""

    version: int
    """The version at its start."""
    session: int | None = None
    """The session whose parked cache it continues; only that session's requests share it. None: any request."""
    adopted: Adopted | None = None
    """The part of that cache that it continues."""


class Sequence:
    """The tokens of one sample, the logprob and version of each sampled token, and its slot in the cache."""

    def __init__(self, group: "SequenceGroup", order: int, stream: np.uint64) -> None:
        self.group = group
        self.stream = stream
        """Hash state that makes its random numbers unique among all samples."""
        self.order = order
        """Arrival order among all sequences: the youngest is preempted first."""
        self.tokens: list[int] = group.request.prompt_token_ids.tolist()
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.is_running = False
        """Whether it has a slot; otherwise it waits for one, or is finished."""
        self.slot = 0
        """Its slot in the cache while it is running."""
        self.began = self.ended = 0.0
        """When it last took and left a slot, on this process's monotonic clock."""
        self.num_computed = 0
        """Leading tokens whose keys and values are in the cache."""
        self.prefix: Prefix | None = None
        """The computation that the cached prompt comes from; valid up to `num_computed`."""
        self.finish_reason: FinishReason | None = None
        self.is_recomputed = False
        """Whether a load or preemption discarded its cache: its missing tokens were computed before."""

    @property
    def num_missing(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def num_sampled(self) -> int:
        return len(self.logprobs)

    @property
    def sampled_tokens(self) -> list[int]:
        return self.tokens[self.group.prompt_length :]

    def append(self, token: int, logprob: float, version: int) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)

    def to_completion(self, text: str, *, now: float) -> Completion:
        assert self.finish_reason is not None
        return Completion(
            token_ids=np.array(self.sampled_tokens, dtype=np.int32),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            spans=spans_of(self.versions),
            finish_reason=self.finish_reason,
            text=text,
            slot_seconds=(now - self.began, now - self.ended),
        )


class SequenceGroup:
    """The samples of one request: they share one prompt and are returned together."""

    def __init__(self, request: Request, first_order: int, streams: np.ndarray) -> None:
        self.request = request
        self.prompt_length = len(request.prompt_token_ids)
        self.prompt_key = request.prompt_token_ids.astype(np.int32).tobytes()
        """A key that is equal for equal prompts, of this request or another one."""
        self.sequences = [Sequence(self, first_order + sample, stream) for sample, stream in enumerate(streams)]

    @property
    def is_finished(self) -> bool:
        return all(sequence.finish_reason is not None for sequence in self.sequences)


def spans_of(versions: list[int]) -> tuple[Span, ...]:
    """Run-length encoding of the versions of consecutive tokens."""
    spans: list[Span] = []
    for version in versions:
        if spans and spans[-1].version == version:
            spans[-1] = Span(version, spans[-1].num_tokens + 1)
        else:
            spans.append(Span(version, 1))
    return tuple(spans)
