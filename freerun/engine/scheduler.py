"""Decides which sequences are in the cache and which tokens the next step computes.

    waiting (by arrival) ──slot and room free──► running (index = slot) ──last token──► finished
                         ◄──cache full: the youngest is preempted──

A step computes one token for every sequence that lacks exactly one, and up to `prefill_chunk_tokens` of those that
lack more, so a long prompt never stalls decoding. A prompt that several sequences share, of one request or of
several, is computed once per version: one sequence computes it, the others wait and copy it. A turn of a session
starts from what the session has parked.
"""

import time
from bisect import bisect, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from freerun.engine.cache import KVCache
from freerun.engine.parking import ParkedCaches
from freerun.engine.prefill import PrefillChunk
from freerun.engine.sequence import Prefix, Sequence, SequenceGroup


@dataclass
class PlannedStep:
    """What one forward pass computes: a token for each of `decodes`, then each prefill's chunk."""

    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[tuple[Sequence, PrefillChunk]] = field(default_factory=list)

    @property
    def recomputed_share(self) -> float:
        """Share of the step's tokens that were computed before, under other weights or before a preemption."""
        if not self.prefills:
            return 0.0
        lengths = [(sequence.is_recomputed, chunk.end - chunk.start) for sequence, chunk in self.prefills]
        recomputed = sum(length for is_recomputed, length in lengths if is_recomputed)
        return recomputed / (len(self.decodes) + sum(length for _, length in lengths))


class Scheduler:
    """Holds the waiting and the running sequences; a running sequence's index is its slot.

    Most steps decode every running sequence and change nothing else. So some facts are maintained rather than
    recomputed from all sequences: the tokens held, which sequences lack more than one, and which prompts are
    cached.
    """

    def __init__(
        self,
        cache: KVCache,
        parked: ParkedCaches,
        *,
        num_slots: int,
        cache_tokens: int,
        prefill_chunk_tokens: int,
    ) -> None:
        self.cache = cache
        self.parked = parked
        self.num_slots = num_slots
        self.cache_tokens = cache_tokens
        self.prefill_chunk_tokens = prefill_chunk_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.cache_tokens_used = 0
        """Reserved positions: one for every token of a running sequence, computed or not."""
        self.num_preemptions = 0
        self.is_draining = False
        """Whether new sequences must wait; preempted ones continue."""
        self.held: set[Sequence] = set()
        """Running sequences that sample no token until the next load."""
        self._lacking: list[Sequence] = []
        """Running sequences that may lack more than one token, by arrival."""
        self._by_prompt: dict[bytes, list[Sequence]] = {}
        """Running sequences by the key of their prompt."""

    @property
    def has_begun(self) -> bool:
        """Whether a sequence is running, or was preempted after it sampled tokens."""
        return bool(self.running) or self._has_preempted

    @property
    def _has_preempted(self) -> bool:
        return any(sequence.num_sampled > 0 for sequence in self.waiting)

    def add(self, group: SequenceGroup) -> None:
        self.waiting.extend(group.sequences)

    def schedule(self, version: int) -> PlannedStep:
        """Make room, admit sequences, and choose the tokens of the next step."""
        self._preempt()
        self._admit()
        if not self._lacking and not self.held:
            return PlannedStep(decodes=self.running.copy())
        prefills = self._prefills(version)
        # Ordered by slot: decoding all sequences is then a plain slice of the cache.
        decodes = [sequence for sequence in self.running if sequence.num_missing == 1]
        return PlannedStep([sequence for sequence in decodes if sequence not in self.held], prefills)

    def _prefills(self, version: int) -> list[tuple[Sequence, PrefillChunk]]:
        """Chunks of the sequences that lack more than one token, oldest first, within the budget."""
        prefills = []
        budget = self.prefill_chunk_tokens
        # Prompts that a sequence is computing; other sequences with the same prompt wait to copy it.
        prefix_pending: set[bytes] = set()
        for sequence in self._lacking:
            if sequence in self.held:
                continue
            group = sequence.group
            if sequence.num_computed == 0:
                self._find_prefix(sequence, version)
            if sequence.num_computed < group.prompt_length - 1:
                if group.prompt_key in prefix_pending:
                    continue
                prefix_pending.add(group.prompt_key)
                if sequence.num_computed == 0:
                    self._begin_prefix(sequence, version)
            if sequence.num_missing > 1 and budget > 0:
                start = sequence.num_computed
                chunk = PrefillChunk(sequence.slot, start, min(start + budget, len(sequence.tokens)))
                budget -= chunk.end - chunk.start
                prefills.append((sequence, chunk))
        return prefills

    def finish_prefills(self, prefills: list[tuple[Sequence, PrefillChunk]], version: int) -> None:
        """Record the prefills that a step computed, and share finished prompts.

        Called at the end of the step, because a sequence may finish with its first token and leave its slot.
        """
        if not self._lacking:
            return
        for sequence, chunk in prefills:
            sequence.num_computed = chunk.end
        for sequence, _ in prefills:
            self._share_prefix(sequence, version)
        self._lacking = [sequence for sequence in self._lacking if sequence.num_missing > 1]

    def _share_prefix(self, donor: Sequence, version: int) -> None:
        """Copy the prompt that `donor` has just computed to the sequences that wait for it."""
        for sequence in self._by_prompt[donor.group.prompt_key]:
            if sequence.num_computed == 0 and _can_lend(donor, sequence, version):
                self._copy_prefix(donor, sequence)

    def finish(self, sequence: Sequence) -> None:
        """Remove a sequence whose completion is finished; if it belongs to a session, its cache is parked."""
        sequence.ended = time.monotonic()
        request = sequence.group.request
        if request.session is not None:
            computed = sequence.tokens[: sequence.num_computed]
            adopted = sequence.prefix.adopted if sequence.prefix is not None else None
            if adopted is not None and adopted.num_tokens >= sequence.group.prompt_length:
                adopted = None  # a sample that copied this prefix has only the prompt of it
            self.parked.park(request.session, request.request_id, computed, slot=sequence.slot, adopted=adopted)
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence; the last one moves into its slot, so live slots stay first."""
        if not sequence.is_running:
            self.waiting.remove(sequence)
            return
        last = self.running.pop()
        if last is not sequence:
            self.cache.copy(source=last.slot, target=sequence.slot, num_tokens=last.num_computed)
            self.running[sequence.slot] = last
            last.slot = sequence.slot
        if sequence in self._lacking:
            self._lacking.remove(sequence)
        self._by_prompt[sequence.group.prompt_key].remove(sequence)
        if not self._by_prompt[sequence.group.prompt_key]:
            del self._by_prompt[sequence.group.prompt_key]
        sequence.is_running = False
        sequence.num_computed = 0  # its slot will be reused: nothing can be copied from it
        self.cache_tokens_used -= len(sequence.tokens)

    def forget_cache(self) -> int:
        """Mark all running sequences for recomputation; returns the number of their cached tokens."""
        num_forgotten = sum(sequence.num_computed for sequence in self.running)
        for sequence in self.running:
            sequence.is_recomputed |= sequence.num_computed > 0
            sequence.num_computed = 0
        self._lacking = sorted(self.running, key=_order)
        return num_forgotten

    def _preempt(self) -> None:
        while self.cache_tokens_used > self.cache_tokens:
            youngest = max(self.running, key=_order)
            youngest.is_recomputed |= youngest.num_computed > 0
            self.remove(youngest)
            place = bisect(self.waiting, youngest.order, key=_order)
            self.waiting.insert(place, youngest)
            self.num_preemptions += 1

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.num_slots:
            # Everything that waits ahead of a preempted sequence arrived earlier, so it has been running too.
            if self.is_draining and not self._has_preempted:
                break
            needed = len(self.waiting[0].tokens)
            # Leave room for one more token each, or the new sequence would be preempted in the next step.
            if self.running and self.cache_tokens_used + needed + len(self.running) + 1 > self.cache_tokens:
                break
            sequence = self.waiting.popleft()
            sequence.slot, sequence.is_running = len(self.running), True
            sequence.began = time.monotonic()
            self.running.append(sequence)
            self._by_prompt.setdefault(sequence.group.prompt_key, []).append(sequence)
            self.cache_tokens_used += needed
            if sequence.num_missing > 1:
                insort(self._lacking, sequence, key=_order)

    def _find_prefix(self, sequence: Sequence, version: int) -> None:
        """Copy the prompt from a running sequence that has it under this version, if there is one."""
        for donor in self._by_prompt[sequence.group.prompt_key]:
            if _can_lend(donor, sequence, version):
                self._copy_prefix(donor, sequence)
                return

    def _begin_prefix(self, sequence: Sequence, version: int) -> None:
        """Start with what the session has parked, or with an empty prefix."""
        session = sequence.group.request.session
        adopted = None if session is None else self.parked.adopt(session, sequence.tokens, slot=sequence.slot)
        if adopted is None:
            sequence.prefix = Prefix(version)
        else:
            sequence.num_computed = adopted.num_tokens
            sequence.prefix = Prefix(version, session, adopted)

    def _copy_prefix(self, donor: Sequence, sequence: Sequence) -> None:
        # All but the last prompt token, which is the sequence's first decode step.
        num_tokens = sequence.group.prompt_length - 1
        self.cache.copy(source=donor.slot, target=sequence.slot, num_tokens=num_tokens)
        sequence.num_computed, sequence.prefix = num_tokens, donor.prefix


def lent_prompts(sequences: Iterable[Sequence]) -> list[tuple[int, int]]:
    """For each decoding sequence, the slot to read its prompt from, and the number of positions to read there.

    All copies of one computation get the same slot. The last prompt token is a decode step, so it is not
    included; the rest is in the cache.
    """
    lenders: dict[Prefix | Sequence, int] = {}
    return [
        # A prompt of one token has nothing before its last token, and no prefix.
        (lenders.setdefault(each.prefix or each, each.slot), each.group.prompt_length - 1)
        for each in sequences
    ]


def _can_lend(donor: Sequence, sequence: Sequence, version: int) -> bool:
    """Whether `donor` has the prompt of `sequence`, which equals its own, and may lend it.

    A cache kept across a load may hold a prompt computed under an older version, and so may a parked one.
    """
    prefix = donor.prefix
    is_computed = 0 < donor.group.prompt_length - 1 <= donor.num_computed
    return (
        is_computed
        and prefix is not None
        and prefix.version == version
        and prefix.session in (None, sequence.group.request.session)
    )


def _order(sequence: Sequence) -> int:
    return sequence.order
