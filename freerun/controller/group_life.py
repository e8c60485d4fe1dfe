"""The life of a running group: its times, the worker that served it, and what it has sampled so far.

    gate admits ─► started ─► last call answered: sampled ─► workflow returns: graded

The group's workflow calls its engines through this object, so nothing else has to report these facts.
"""

import math
from collections.abc import Callable, Iterable
from itertools import chain, pairwise
from typing import Any

from freerun.protocols import Generator, VersionedGenerator
from freerun.types import Completion, Prompt, Request, Reward, Trajectory


class GroupLife:
    """Implements `protocols.Generator` for one group; times are on the run's clock."""

    def __init__(self, engines: VersionedGenerator, clock: Callable[[], float]) -> None:
        self.started = clock()
        self.sampled: float | None = None
        self.graded: float | None = None
        self.worker = ""
        self._generator: Generator = engines
        self._engines = engines
        self._clock = clock
        self._answers: dict[tuple[int, int], tuple[Completion, ...]] = {}
        """Completions by (first sample, call): what a failed group leaves behind."""
        self._slots: list[tuple[float, float]] = []

    def through(self, generator: Generator) -> Generator:
        """Return a generator for the workflow that records the results of `generator`."""
        self._generator = generator
        return self

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        completions = await self._generator.generate(request)
        self.sampled = self._clock()
        self.worker = self._engines.served_by(request.request_id)
        self._answers[request.sample, request.call] = completions
        self._slots += (
            (self.sampled - began, self.sampled - ended)
            for began, ended in (each.slot_seconds for each in completions if each.slot_seconds is not None)
        )
        return completions

    def end_session(self, session: int) -> None:
        self._generator.end_session(session)

    def note_graded(self) -> None:
        """Note the time at which the workflow returned, with all its grades."""
        self.graded = self._clock()

    @property
    def grade_seconds(self) -> float | None:
        """Time from the group's last token to its last grade."""
        return None if self.graded is None or self.sampled is None else self.graded - self.sampled

    @property
    def facts(self) -> dict[str, Any]:
        """The fields for the group's `GroupFinished` event."""
        return {
            "started": self.started,
            "sampled": self.sampled,
            "graded": self.graded,
            "worker": self.worker,
            "num_interrupts": count_interrupts(chain.from_iterable(self._answers.values())),
            "slots": tuple(self._slots),
        }

    def left_behind(self, prompt: Prompt) -> tuple[Trajectory, ...]:
        """What a failed group has sampled, without rewards; each call of a session is a part."""
        ungraded = Reward(math.nan, False)
        # A dictionary keeps one completion if a sample's call has several replies, or if calls overlap.
        by_sample = {
            (sample, call): completion
            for (first, call), completions in self._answers.items()
            for sample, completion in enumerate(completions, first)
        }
        return tuple(
            Trajectory(prompt=prompt, sample=sample, part=call, completion=completion, reward=ungraded)
            for (sample, call), completion in sorted(by_sample.items(), key=lambda item: item[0])
            if completion.num_sampled
        )


def count_interrupts(completions: Iterable[Completion]) -> int:
    """Number of loads under which at least one of the completions continued."""
    return len(
        {
            later.version
            for completion in completions
            if len(completion.spans) > 1
            for earlier, later in pairwise(completion.spans)
            if earlier.call == later.call and None not in (earlier.version, later.version)
        }
    )
