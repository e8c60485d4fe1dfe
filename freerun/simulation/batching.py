"""Continuous batching without tokens: which sequences run, what a step computes, when one is finished.

The rules are those of `engine/scheduler.py`, and a test compares the two: slots, room in the cache, preemption
of the youngest, prompts computed once per group, prefill chunks beside decoding, and loads that recompute the
cache, keep it, or wait until all running sequences are finished.

Decoding sequences gain one token per step. No state is updated until something else changes, so many steps cost as
much as one: `plan` says how many equal steps follow, `advance` makes them.
"""

import heapq
from bisect import bisect, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from freerun.config.engine import EngineConfig
from freerun.types import Request, Span


class SampledSequence:
    """One sample: its final length and its progress."""

    __slots__ = (
        "computed", "group", "index", "is_running", "length", "num_prompt", "order", "prefix_version", "sampled",
        "since", "spans",
    )  # fmt: skip

    def __init__(self, group: "SampledGroup", index: int, order: int, length: int) -> None:
        self.group = group
        self.num_prompt = group.num_prompt
        self.index = index
        self.order = order
        self.length = length
        """Number of tokens it will have."""
        self.sampled = 0
        """Tokens sampled before step `since`."""
        self.since: int | None = None
        """The step from which it gains one token per step; None while it does not decode."""
        self.computed = 0
        """Tokens in the cache; valid only while it does not decode."""
        self.prefix_version: int | None = None
        self.is_running = False
        self.spans: list[tuple[int, int]] = []

    @property
    def num_tokens(self) -> int:
        """Number of tokens; valid only while it does not decode."""
        return self.num_prompt + self.sampled

    def add(self, version: int, num_tokens: int) -> None:
        if not num_tokens:
            return
        self.sampled += num_tokens
        if self.spans and self.spans[-1][0] == version:
            num_tokens += self.spans.pop()[1]
        self.spans.append((version, num_tokens))


class SampledGroup:
    """The samples of one request."""

    __slots__ = ("num_left", "num_prompt", "request", "sequences")

    def __init__(self, request: Request, first_order: int, lengths: Sequence[int]) -> None:
        self.request = request
        self.num_prompt = len(request.prompt_token_ids)
        self.sequences = [SampledSequence(self, i, first_order + i, length) for i, length in enumerate(lengths)]
        self.num_left = len(lengths)

    def spans(self) -> list[tuple[Span, ...]]:
        """The spans of each sample, once all are finished."""
        return [tuple(Span(version, number) for version, number in each.spans) for each in self.sequences]


@dataclass(frozen=True)
class Steps:
    """The next `num_steps` equal steps; steps with prefills are planned one at a time."""

    num_steps: int
    num_decoding: int
    num_cached: int
    """Cached tokens of the decoding sequences before the first step."""
    num_prefill: int = 0
    mean_context: float = 0.0
    """Mean context of the prefilled tokens."""
    recomputed_share: float = 0.0
    chunks: tuple[tuple[SampledSequence, int], ...] = ()
    """Sequences to prefill, each up to this token."""

    def num_attended(self, num_steps: int) -> int:
        """Cached tokens of the decoding sequences, summed over the first steps; each gains one per step."""
        return num_steps * self.num_cached + self.num_decoding * num_steps * (num_steps - 1) // 2


class BatchedSequences:
    """The sequences of one engine; call `plan`, then `advance` by one or more steps."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.version: int | None = None
        self.is_draining = False
        self.waiting: deque[SampledSequence] = deque()
        self.running: dict[int, SampledSequence] = {}
        """Running sequences by order."""
        self.groups: dict[int, SampledGroup] = {}
        self.num_steps = self.num_tokens = self.num_prefill_tokens = self.num_attended_tokens = 0
        self.num_preemptions = self.num_loads = self.num_interrupts = self.num_recomputed_tokens = 0
        self.cache_tokens_used = 0
        self._num_sequences = 0
        self._lacking: list[SampledSequence] = []
        """Running sequences that do not decode, by order."""
        self._ends: list[tuple[int, int, SampledSequence]] = []
        """A heap of the steps at which decoding sequences finish; may contain outdated entries."""
        self._by_prompt: dict[int, list[SampledSequence]] = {}

    @property
    def has_begun(self) -> bool:
        """Whether a sequence is running, or was preempted after it sampled tokens."""
        return bool(self.running) or any(sequence.sampled for sequence in self.waiting)

    def submit(self, request: Request, lengths: Sequence[int]) -> None:
        group = SampledGroup(request, self._num_sequences, lengths)
        self._num_sequences += len(lengths)
        self.groups[request.request_id] = group
        self.waiting.extend(group.sequences)

    def abort(self, request_id: int) -> None:
        """Abort a request; an unknown one is ignored because it may just have finished."""
        group = self.groups.pop(request_id, None)
        for sequence in group.sequences if group else ():
            if sequence.is_running:
                self._remove(sequence)
            elif sequence.sampled < sequence.length:
                self.waiting.remove(sequence)

    def load(self, version: int) -> int:
        """Sample under `version` from the next step on; returns the number of interrupted sequences."""
        for sequence in self.running.values():
            self._settle(sequence)
        self.version, self.is_draining = version, False
        num_interrupts = sum(sequence.sampled > 0 for sequence in self.running.values())
        self.num_loads += 1
        self.num_interrupts += num_interrupts
        if self.config.kv_on_load == "recompute":
            self._forget_cache()
        return num_interrupts

    def _forget_cache(self) -> None:
        for sequence in self.running.values():
            if sequence.since is not None:  # all but the newest token
                sequence.computed, sequence.since = sequence.num_tokens - 1, None
            self.num_recomputed_tokens += sequence.computed
            sequence.computed = 0
        self._ends = []
        self._lacking = [self.running[order] for order in sorted(self.running)]

    # ---- one step or more -----------------------------------------------------------------------

    def plan(self) -> Steps | None:
        """What the next steps compute; None if there is nothing to compute."""
        assert self.version is not None, "an engine without weights cannot generate"
        while self.cache_tokens_used > self.config.cache_tokens:
            self._preempt()
        self._admit()
        if not self.running:
            return None
        if self._lacking:
            return self._plan_prefills()
        num_running = len(self.running)
        while self._is_outdated(self._ends[0]):
            heapq.heappop(self._ends)
        until_end = self._ends[0][0] - self.num_steps
        until_full = (self.config.cache_tokens - self.cache_tokens_used) // num_running + 1
        return Steps(min(until_end, until_full), num_running, self.cache_tokens_used)

    def advance(self, planned: Steps, num_steps: int) -> list[SampledGroup]:
        """Make the first steps of the plan; returns the groups that they finish."""
        assert self.version is not None
        self.cache_tokens_used += num_steps * planned.num_decoding
        self.num_tokens += num_steps * planned.num_decoding
        self.num_attended_tokens += planned.num_attended(num_steps)
        self.num_steps += num_steps
        finished = self._finish_prefills(planned) if planned.chunks or self._lacking else []
        while self._ends and (self._ends[0][0] <= self.num_steps or self._is_outdated(self._ends[0])):
            ended = heapq.heappop(self._ends)
            if not self._is_outdated(ended):
                self._finish(ended[2], finished)
        return finished

    def _plan_prefills(self) -> Steps:
        """Plan as `Scheduler._prefills`: oldest first, within the budget; one sequence computes a prompt."""
        budget = self.config.prefill_chunk_tokens
        chunks, pending, ready = [], set(), []
        contexts = recomputed = lacking_tokens = 0
        for sequence in self._lacking:
            num_tokens, computed = sequence.num_prompt + sequence.sampled, sequence.computed
            if num_tokens - computed == 1:
                ready.append(sequence)
                continue
            lacking_tokens += num_tokens
            if computed < sequence.num_prompt - 1:
                key = sequence.group.request.ordinal
                if key in pending:
                    continue
                pending.add(key)
                if computed == 0:
                    sequence.prefix_version = self.version
            if budget > 0:
                end = min(computed + budget, num_tokens)
                size = end - computed
                budget -= size
                contexts += size * (computed + end) // 2
                recomputed += size if sequence.sampled else 0
                chunks.append((sequence, end))
        self._start_decoding(ready)
        num_prefill = self.config.prefill_chunk_tokens - budget
        num_decoding = len(self.running) - len(self._lacking)
        return Steps(
            num_steps=1,
            num_decoding=num_decoding,
            num_cached=self.cache_tokens_used - lacking_tokens,
            num_prefill=num_prefill,
            mean_context=contexts / num_prefill if num_prefill else 0.0,
            recomputed_share=recomputed / (num_decoding + num_prefill),
            chunks=tuple(chunks),
        )

    def _finish_prefills(self, planned: Steps) -> list[SampledGroup]:
        """Record what the step prefilled, share finished prompts, and sample for sequences that lack nothing."""
        assert self.version is not None
        finished: list[SampledGroup] = []
        whole = []
        for sequence, end in planned.chunks:
            sequence.computed = end
        for sequence, _ in planned.chunks:
            self._share_prompt(sequence)
        for sequence, end in planned.chunks:
            if end == sequence.num_tokens:
                whole.append(sequence)
                self.cache_tokens_used += 1
                self.num_tokens += 1
                sequence.add(self.version, 1)
        self.num_prefill_tokens += planned.num_prefill - len(whole)
        self._start_decoding(whole)
        self._start_decoding([s for s in self._lacking if s.num_prompt + s.sampled - s.computed == 1])
        for sequence in whole:
            if sequence.sampled == sequence.length:
                self._finish(sequence, finished)
        return finished

    def _start_decoding(self, sequences: list[SampledSequence]) -> None:
        """Let sequences that lack one token decode: the next step computes it and samples another."""
        for sequence in sequences:
            place = bisect(self._lacking, sequence.order, key=_order) - 1
            assert self._lacking[place] is sequence
            del self._lacking[place]
            self._decode(sequence)

    def _decode(self, sequence: SampledSequence) -> None:
        sequence.since = self.num_steps
        if sequence.sampled < sequence.length:
            end = self.num_steps + sequence.length - sequence.sampled
            heapq.heappush(self._ends, (end, sequence.order, sequence))

    def _share_prompt(self, donor: SampledSequence) -> None:
        if not self._can_lend(donor):
            return
        for sequence in self._by_prompt[donor.group.request.ordinal]:
            if sequence.since is None and sequence.computed == 0:
                sequence.computed, sequence.prefix_version = donor.group.num_prompt - 1, donor.prefix_version

    def _can_lend(self, donor: SampledSequence) -> bool:
        needed = donor.group.num_prompt - 1
        has_it = donor.since is not None or needed <= donor.computed
        return needed > 0 and has_it and donor.prefix_version == self.version

    def _admit(self) -> None:
        config = self.config
        while self.waiting and len(self.running) < config.num_slots:
            if self.is_draining and not any(sequence.sampled for sequence in self.waiting):
                break
            sequence = self.waiting[0]
            needed = sequence.num_tokens
            if self.running and self.cache_tokens_used + needed + len(self.running) + 1 > config.cache_tokens:
                break
            self.waiting.popleft()
            mates = self._by_prompt.setdefault(sequence.group.request.ordinal, [])
            donor = next((mate for mate in mates if self._can_lend(mate)), None)
            mates.append(sequence)
            sequence.computed = 0
            if donor is not None:
                sequence.computed, sequence.prefix_version = sequence.group.num_prompt - 1, donor.prefix_version
            sequence.is_running = True
            self.running[sequence.order] = sequence
            self.cache_tokens_used += needed
            if needed - sequence.computed > 1:
                insort(self._lacking, sequence, key=_order)
            else:
                self._decode(sequence)

    def _preempt(self) -> None:
        youngest = self.running[max(self.running)]
        self._remove(youngest)
        self.waiting.insert(bisect(self.waiting, youngest.order, key=_order), youngest)
        self.num_preemptions += 1

    def _finish(self, sequence: SampledSequence, finished: list[SampledGroup]) -> None:
        self._remove(sequence)
        group = sequence.group
        group.num_left -= 1
        if not group.num_left:
            del self.groups[group.request.request_id]
            finished.append(group)

    def _remove(self, sequence: SampledSequence) -> None:
        self._settle(sequence)
        if sequence.since is None:
            self._lacking.remove(sequence)
        sequence.since, sequence.computed, sequence.is_running = None, 0, False
        del self.running[sequence.order]
        mates = self._by_prompt[sequence.group.request.ordinal]
        mates.remove(sequence)
        if not mates:
            del self._by_prompt[sequence.group.request.ordinal]
        self.cache_tokens_used -= sequence.num_tokens

    def _settle(self, sequence: SampledSequence) -> None:
        """Count the tokens that the sequence has sampled since it began to decode."""
        if sequence.since is not None:
            assert self.version is not None
            sequence.add(self.version, self.num_steps - sequence.since)
            sequence.since = self.num_steps

    def _is_outdated(self, end: tuple[int, int, SampledSequence]) -> bool:
        """Whether the sequence has been removed or has stopped decoding since the entry was made."""
        step, _, sequence = end
        return sequence.since is None or step != sequence.since + sequence.length - sequence.sampled


def _order(sequence: SampledSequence) -> int:
    return sequence.order
