"""Decides which sequences are in the cache and which tokens the next step computes.

    waiting (by arrival) ──slot and room free──► running (index = slot) ──last token──► finished
                         ◄──cache full: the youngest is preempted──

A step computes one token for every sequence that lacks exactly one, and up to `prefill_chunk_tokens` of those
that lack more, so a long prompt never stalls decoding. Samples of a group copy the prompt from a sibling that has
it under the current version; while one of them computes it, the others wait.
"""

from bisect import bisect, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from freerun.engine.cache import KVCache, PrefillChunk
from freerun.engine.sequence import Prefix, Sequence, SequenceGroup


@dataclass
class PlannedStep:
    """What one forward pass computes: a token for each of `decodes`, then each prefill's chunk."""

    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[tuple[Sequence, PrefillChunk]] = field(default_factory=list)


class Scheduler:
    """Holds the waiting and the running sequences; a running one's index is its slot.

    Most steps decode every running sequence and change nothing else. Two facts are therefore maintained rather
    than recomputed from all sequences: the tokens held, and which sequences lack more than one.
    """

    def __init__(self, cache: KVCache, *, num_slots: int, cache_tokens: int, prefill_chunk_tokens: int) -> None:
        self.cache = cache
        self.num_slots = num_slots
        self.cache_tokens = cache_tokens
        self.prefill_chunk_tokens = prefill_chunk_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.cache_tokens_used = 0
        """Reserved positions: one for every token of a running sequence, computed or not."""
        self.num_preemptions = 0
        self.is_draining = False
        """No new sequence starts; preempted ones continue."""
        self._lacking: list[Sequence] = []
        """Running sequences that may lack more than one token, by arrival."""

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
        """Make room, admit, and choose the tokens of the next step."""
        self._preempt()
        self._admit()
        if not self._lacking:
            return PlannedStep(decodes=self.running.copy())
        prefills = self._prefills(version)
        # By slot: decoding all sequences is then a plain slice of the cache.
        return PlannedStep([sequence for sequence in self.running if sequence.num_missing == 1], prefills)

    def _prefills(self, version: int) -> list[tuple[Sequence, PrefillChunk]]:
        """Chunks of the sequences that lack more than one token, oldest first, within the budget."""
        prefills = []
        budget = self.prefill_chunk_tokens
        # Groups whose prompt is being computed by one of their samples; the others wait to copy it.
        prefix_pending: set[int] = set()
        for sequence in self._lacking:
            group = sequence.group
            if sequence.num_computed == 0:
                self._find_prefix(sequence, version)
            if sequence.num_computed < group.prompt_length - 1:
                if id(group) in prefix_pending:
                    continue
                prefix_pending.add(id(group))
                if sequence.num_computed == 0:
                    sequence.prefix = Prefix(version)
            if sequence.num_missing > 1 and budget > 0:
                start = sequence.num_computed
                chunk = PrefillChunk(sequence.slot, start, min(start + budget, len(sequence.tokens)))
                budget -= chunk.end - chunk.start
                prefills.append((sequence, chunk))
        return prefills

    def finish_prefills(self, prefills: list[tuple[Sequence, PrefillChunk]], version: int) -> None:
        """Record the prefills that a step computed, and share finished prompts.

        At the end of the step rather than in the next one: a sequence may finish with its first token and be gone.
        """
        if not self._lacking:
            return
        for sequence, chunk in prefills:
            sequence.num_computed = chunk.end
        for sequence, _ in prefills:
            self._share_prefix(sequence, version)
        self._lacking = [sequence for sequence in self._lacking if sequence.num_missing > 1]

    def _share_prefix(self, donor: Sequence, version: int) -> None:
        """Copy the prompt that `donor` has just computed to the waiting siblings."""
        if not _has_prefix(donor, version):
            return
        for sequence in self._lacking:
            if sequence.group is donor.group and sequence.num_computed == 0:
                self._copy_prefix(donor, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence; the last slot moves into the gap, so live slots stay first."""
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
        sequence.is_running = False
        sequence.num_computed = 0  # its slot is reused: it can no longer be copied from
        self.cache_tokens_used -= len(sequence.tokens)

    def forget_cache(self) -> int:
        """Mark all running sequences for recomputation; returns the number of tokens."""
        num_forgotten = sum(sequence.num_computed for sequence in self.running)
        for sequence in self.running:
            sequence.num_computed = 0
        self._lacking = sorted(self.running, key=_order)
        return num_forgotten

    def _preempt(self) -> None:
        while self.cache_tokens_used > self.cache_tokens:
            youngest = max(self.running, key=_order)
            self.remove(youngest)
            place = bisect(self.waiting, youngest.order, key=_order)
            self.waiting.insert(place, youngest)
            self.num_preemptions += 1

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.num_slots:
            # Everything that waits before a preempted sequence arrived earlier, so it has been running too.
            if self.is_draining and not self._has_preempted:
                break
            needed = len(self.waiting[0].tokens)
            # Room for one more token each, or the newcomer would be preempted in the next step.
            if self.running and self.cache_tokens_used + needed + len(self.running) + 1 > self.cache_tokens:
                break
            sequence = self.waiting.popleft()
            sequence.slot, sequence.is_running = len(self.running), True
            self.running.append(sequence)
            self.cache_tokens_used += needed
            if sequence.num_missing > 1:
                insort(self._lacking, sequence, key=_order)

    def _find_prefix(self, sequence: Sequence, version: int) -> None:
        """Copy the prompt from a running sibling that has it under this version, if there is one."""
        for donor in sequence.group.sequences:
            if _has_prefix(donor, version):
                self._copy_prefix(donor, sequence)
                return

    def _copy_prefix(self, donor: Sequence, sequence: Sequence) -> None:
        # All but the last token: that one is the sequence's first decode step.
        num_tokens = sequence.group.prompt_length - 1
        self.cache.copy(source=donor.slot, target=sequence.slot, num_tokens=num_tokens)
        sequence.num_computed, sequence.prefix = num_tokens, donor.prefix


def lent_prompts(sequences: Iterable[Sequence]) -> list[tuple[int, int]]:
    """For each decoding sequence, the slot to read its prompt from, and the number of positions.

    All copies of one computation get the same slot. Only the last token of a prompt is a decode step, so the rest
    is in the cache.
    """
    lenders: dict[Prefix | Sequence, int] = {}
    return [
        # A prompt of one token has nothing before it, and no prefix.
        (lenders.setdefault(each.prefix or each, each.slot), each.group.prompt_length - 1)
        for each in sequences
    ]


def _has_prefix(sequence: Sequence, version: int) -> bool:
    """Whether its prompt may be copied: a kept cache may hold one computed under an older version."""
    is_computed = 0 < sequence.group.prompt_length - 1 <= sequence.num_computed
    return is_computed and sequence.prefix is not None and sequence.prefix.version == version


def _order(sequence: Sequence) -> int:
    return sequence.order
