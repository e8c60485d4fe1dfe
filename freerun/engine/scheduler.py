"""Decides who is in the cache and which tokens are computed in the next step.

    waiting (by arrival) ──slot and room free──► running (index = slot) ──last token──► finished
                         ◄──cache full: the youngest is preempted──

A step computes one token for every sequence that lacks exactly one, and up to `prefill_chunk_tokens` of
those that lack more, so that a long prompt never stalls decoding. Samples of one group copy the prompt
from a sibling that has it under the current version; while one of them computes it, the others wait.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from freerun.engine.cache import KVCache, PrefillChunk
from freerun.engine.sequence import Sequence, SequenceGroup


@dataclass
class Step:
    """What one forward pass computes: a token for each of `decodes`, then each prefill's chunk."""

    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[tuple[Sequence, PrefillChunk]] = field(default_factory=list)


class Scheduler:
    """Holds the waiting and the running sequences; a running one's index is its slot."""

    def __init__(self, cache: KVCache, *, num_slots: int, cache_tokens: int, prefill_chunk_tokens: int) -> None:
        self.cache = cache
        self.num_slots = num_slots
        self.cache_tokens = cache_tokens
        self.prefill_chunk_tokens = prefill_chunk_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.is_draining = False
        """Nothing begins; what was preempted goes on."""

    @property
    def cache_tokens_used(self) -> int:
        """Positions reserved: every token of a running sequence has or will shortly have its place."""
        return sum(len(sequence.tokens) for sequence in self.running)

    @property
    def has_begun(self) -> bool:
        """Whether a sequence is running, or was preempted and has tokens of the version it began with."""
        return bool(self.running) or any(sequence.num_sampled > 0 for sequence in self.waiting)

    def add(self, group: SequenceGroup) -> None:
        self.waiting.extend(group.sequences)

    def schedule(self, version: int) -> Step:
        """Make room, admit, and choose the tokens of the next step."""
        self._preempt()
        self._admit()
        step = Step()
        budget = self.prefill_chunk_tokens
        # Groups whose prompt is being computed by one of their samples; the others wait to copy it.
        prefix_pending: set[int] = set()
        for sequence in sorted(self.running, key=lambda s: s.order):
            group = sequence.group
            if sequence.num_computed == 0 and group.prompt_length > 1:
                self._find_prefix(sequence, version)
            needs_prefix = sequence.num_computed < group.prompt_length - 1
            if needs_prefix and id(group) in prefix_pending:
                continue
            if needs_prefix:
                prefix_pending.add(id(group))
                if sequence.num_computed == 0:
                    sequence.prefix_version = version
            if sequence.num_missing == 1:
                step.decodes.append(sequence)
            elif budget > 0:
                start = sequence.num_computed
                chunk = PrefillChunk(
                    self.running.index(sequence), start, min(start + budget, len(sequence.tokens))
                )
                budget -= chunk.end - chunk.start
                step.prefills.append((sequence, chunk))
        # By slot, so that decoding everyone is a plain slice of the cache.
        slot_of = {id(sequence): slot for slot, sequence in enumerate(self.running)}
        step.decodes.sort(key=lambda s: slot_of[id(s)])
        return step

    def share_prefix(self, donor: Sequence) -> None:
        """Give the prompt that `donor` has just computed to the siblings that wait for it.

        At the end of the step, not at the next one: the donor may finish with its first token.
        """
        if donor.num_computed < donor.group.prompt_length - 1:
            return
        for sequence in self.running:
            if sequence.group is donor.group and sequence.num_computed == 0 and donor.group.prompt_length > 1:
                self._copy_prefix(donor, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; the last slot moves into the hole so that live slots stay the first ones."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return
        slot = self.running.index(sequence)
        last = self.running.pop()
        num_tokens = last.num_computed
        sequence.num_computed = 0  # its place is given away: it can lend nothing any more
        if last is not sequence:
            self.cache.copy(source=len(self.running), target=slot, num_tokens=num_tokens)
            self.running[slot] = last

    def forget_cache(self) -> int:
        """Everything running must be computed again; returns how many tokens that are."""
        num_forgotten = sum(sequence.num_computed for sequence in self.running)
        for sequence in self.running:
            sequence.num_computed = 0
        return num_forgotten

    def _preempt(self) -> None:
        while self.cache_tokens_used > self.cache_tokens:
            youngest = max(self.running, key=lambda s: s.order)
            self.remove(youngest)
            insort(self.waiting, youngest, key=lambda s: s.order)
            self.num_preemptions += 1

    def _admit(self) -> None:
        used = self.cache_tokens_used
        while self.waiting and len(self.running) < self.num_slots:
            # Whatever waits before a preempted sequence has been running too: it came earlier.
            if self.is_draining and not any(sequence.num_sampled > 0 for sequence in self.waiting):
                break
            needed = len(self.waiting[0].tokens)
            # Room for one more token each, or the newcomer would be preempted in the next step.
            if self.running and used + needed + len(self.running) + 1 > self.cache_tokens:
                break
            self.running.append(self.waiting.pop(0))
            used += needed

    def _find_prefix(self, sequence: Sequence, version: int) -> None:
        """Copy the prompt from a running sibling that has it under this version, if there is one."""
        for donor in sequence.group.sequences:
            if donor.num_computed >= sequence.group.prompt_length - 1 and donor.prefix_version == version:
                self._copy_prefix(donor, sequence)
                return

    def _copy_prefix(self, donor: Sequence, sequence: Sequence) -> None:
        # All but the last token: computing that one is the sequence's own first decode step.
        num_tokens = sequence.group.prompt_length - 1
        source, target = self.running.index(donor), self.running.index(sequence)
        self.cache.copy(source=source, target=target, num_tokens=num_tokens)
        sequence.num_computed, sequence.prefix_version = num_tokens, donor.prefix_version
