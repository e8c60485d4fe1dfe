"""What if: trains the recorded batches with other settings, into a new run directory.

    runs/NAME ─► batches from step N on ─► trainer with other settings ─► runs/NAME-what-if-1

Nothing is generated, so the batches remain those that the recorded policy sampled, and the new policy moves
away from them. The effective sample size of its weights against the recorded behaviour measures how far; below
`MIN_ESS` the batches say too little about the new policy, and the what-if ends. Its directory is a run: its
record up to step N is that of the other run, and it ends with a checkpoint that can be evaluated, forked and
resumed. If the run was resumed with other settings, the what-if has a session for each of them.
"""

import asyncio
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from freerun.config.changes import Change, changes_between
from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import MODEL_DIRECTORY
from freerun.errors import FreerunError
from freerun.events.events import CheckpointSaved, RunFinished, RunOutcome, StepFinished, WeightsLoaded
from freerun.events.reader import RunReader
from freerun.events.store import Store
from freerun.replay.descended_run import data_fingerprint, descended_run, with_own_rows
from freerun.replay.difference import DISAGREEMENT, Difference
from freerun.replay.fork import save_checkpoint
from freerun.replay.plan import ReplayPlan, plan_replay
from freerun.replay.recorded_state import state_at
from freerun.replay.replay import Comparison, ReplayProgress, Retrained, retrain
from freerun.replay.retrainer import Retrainer
from freerun.replay.settings import RunSettings
from freerun.replay.what_if_settings import check_presets, check_start, read_changes
from freerun.session.provenance import session_start
from freerun.session.run_directory import RunDirectory, write_config
from freerun.session.run_lock import locked
from freerun.workers.messages import DIVERGED

MIN_ESS = 0.3
ESS = "effective_sample_size"


@dataclass(frozen=True)
class WhatIfSession:
    """Consecutive steps with the same changed settings; a resumed run has several such sessions."""

    first: int
    recipe: Recipe


@dataclass(frozen=True)
class WhatIfPlan:
    """The steps of the replay from its first one on, with other settings."""

    replay: ReplayPlan
    run: RunDirectory
    sessions: tuple[WhatIfSession, ...]
    changes: tuple[Change, ...]
    """Changes in the first session."""
    fingerprint: str

    @property
    def story(self) -> str:
        """A description of the origin, for the run's record."""
        changed = f", with {', '.join(map(str, self.changes))}" if self.changes else ""
        return f"what if of {self.replay.run.path} from step {self.replay.first} on{changed}"


@dataclass(frozen=True)
class WhatIfStep:
    """A step with other settings, and its record."""

    version: int
    metrics: dict[str, float]
    recorded: dict[str, float]


@dataclass(frozen=True)
class WhatIfEnd:
    last: int
    """The last version."""
    why_early: str
    difference: Difference | None
    """The first difference in the steps before the change."""


def plan_what_if(
    directory: Path,
    given: Sequence[str],
    *,
    first: int | None = None,
    last: int | None = None,
    num_threads: int | None = None,
) -> WhatIfPlan:
    """Make the plan; `given` is key=value. Everything that can be refused is refused here."""
    overrides = read_changes(given)
    first = 1 if first is None else first
    replay = plan_replay(directory, first=first, last=last, num_threads=num_threads, overrides=overrides)
    with RunReader(directory) as reader:
        settings = RunSettings.read(replay.run, reader)
    run = _free_directory(replay.run.path)
    before = settings.of_step(first)
    return WhatIfPlan(
        replay=replay,
        run=run,
        sessions=tuple(_sessions(replay, settings, overrides, run)),
        changes=tuple(changes_between(before, settings.of_step(first, overrides))),
        fingerprint=data_fingerprint(replay.run, before),
    )


def _sessions(
    replay: ReplayPlan, settings: RunSettings, overrides: Sequence[str], run: RunDirectory
) -> Iterator[WhatIfSession]:
    """The sessions of the what-if; raises for settings that it cannot have."""
    later = sorted(step for step in settings.first_steps if replay.first < step <= replay.last)
    for first in (replay.first, *later):
        before, after = settings.of_step(first), settings.of_step(first, overrides)
        check_presets(before, after)
        check_start(before, after, start=replay.first - 1, has_reference=replay.run.reference.is_dir())
        placed = dataclasses.replace(after.run, name=run.path.name, directory=str(run.path.parent))
        recipe = dataclasses.replace(after, run=placed)
        yield WhatIfSession(first, with_own_rows(recipe, replay.run, run))


def _free_directory(origin: Path) -> RunDirectory:
    path = origin if origin.name not in ("", "..") else origin.resolve()
    number = 1
    while path.with_name(f"{path.name}-what-if-{number}").exists():
        number += 1
    return RunDirectory(path.with_name(f"{path.name}-what-if-{number}"))


def try_what_if(
    plan: WhatIfPlan, *, on_progress: ReplayProgress, on_step: Callable[[WhatIfStep], None]
) -> WhatIfEnd:
    """Train the steps into the new run, which is finished when this returns."""
    replay = plan.replay
    with RunReader(replay.run.path) as reader:
        seconds = _clock_at(reader, replay.first - 1)
    recipe = plan.sessions[0].recipe
    with descended_run(replay.run, plan.run, recipe, version=replay.first - 1, seconds=seconds):
        pass  # the state before the first step with other settings
    with locked(plan.run.path), tempfile.TemporaryDirectory(prefix="freerun-what-if-") as scratch:
        return asyncio.run(_WhatIf(plan, seconds, on_step).run(Path(scratch), on_progress))


def _clock_at(reader: RunReader, version: int) -> float:
    """The run's clock when the version was made; for version 0, when engines had it."""
    if (step := reader.step(version)) is not None:
        return step.seconds
    return next((event.seconds for event in reader.weights_loaded() if event.version == version), 0.0)


class _WhatIf:
    """Compares the steps before the change, and records those after it."""

    def __init__(self, plan: WhatIfPlan, seconds: float, on_step: Callable[[WhatIfStep], None]) -> None:
        self._plan = plan
        self._seconds = seconds
        self._on_step = on_step
        self._comparison = Comparison(goes_on=True)
        self._why_early = ""
        self._version = plan.replay.first - 1
        self._checkpoint: Path | None = None
        self._stepped = time.monotonic()
        self._later = list(plan.sessions[1:])
        self._store = self._begin(plan.sessions[0])

    async def run(self, scratch: Path, on_progress: ReplayProgress) -> WhatIfEnd:
        plan, reason = self._plan, "an internal error"
        outcome: RunOutcome = "failed"
        retrainer = Retrainer(
            plan.replay.run, scratch, num_threads=plan.replay.num_threads, reference=plan.run.reference
        )
        try:
            await retrain(plan.replay, retrainer, on_progress, self._take)
            await self._save(retrainer)
            outcome, reason = "finished", self._why_early
        except asyncio.CancelledError:
            outcome, reason = "interrupted", "stopped without a checkpoint"
            raise
        except FreerunError as error:
            reason = str(error)
            raise
        finally:
            await retrainer.close()
            self._end(outcome, reason)
        return WhatIfEnd(self._version, self._why_early, self._comparison.difference)

    def _begin(self, session: WhatIfSession) -> Store:
        """Begin a session like a resumed run: config.toml has the newest settings, the store those of each."""
        plan = self._plan
        write_config(plan.run, session.recipe)
        store = Store(plan.run.path)
        store(
            session_start(
                session.recipe, plan.run.path, seconds=self._seconds, version=self._version, origin=plan.story
            )
        )
        return store

    def _take(self, trained: Retrained) -> bool:
        began, self._stepped = self._stepped, time.monotonic()
        if trained.result.version < self._plan.replay.first:
            return self._comparison.take(trained)
        return self._record(trained, self._stepped - began)

    def _record(self, trained: Retrained, step_seconds: float) -> bool:
        metrics = {name: value for name, value in trained.result.metrics.items() if name != DISAGREEMENT}
        result = msgspec.structs.replace(trained.result, metrics=metrics)
        if metrics.get(DIVERGED):
            raise FreerunError(
                f"training diverged: after step {result.version} the weights or the logits are not finite, so "
                f"there is no model of these settings; {self._plan.run.path} has the steps before it"
            )
        if self._later and self._later[0].first == result.version:
            self._end("interrupted", "the next session had other settings")
            self._store = self._begin(self._later.pop(0))
        self._version, self._seconds = result.version, self._seconds + step_seconds
        self._store(
            StepFinished(
                seconds=self._seconds,
                result=result,
                groups=trained.batch,
                step_seconds=step_seconds,
                wait_seconds=0.0,
            )
        )
        self._store(WeightsLoaded(seconds=self._seconds, version=result.version, checksum=trained.checksum))
        self._on_step(WhatIfStep(result.version, metrics, trained.step.metrics))
        size = metrics.get(ESS)
        if size is not None and not size >= MIN_ESS:  # true for NaN as well
            self._why_early = (
                f"stopped after step {result.version}: its effective sample size is {size:.2f}, below {MIN_ESS}: "
                "the recorded batches say too little about this policy"
            )
        return not self._why_early

    async def _save(self, retrainer: Retrainer) -> None:
        plan = self._plan
        with RunReader(plan.replay.run.path) as reader:
            state = state_at(reader, self._version, data_fingerprint=plan.fingerprint)
        state = msgspec.structs.replace(state, seconds=self._seconds)
        self._store.flush()  # the store must not lack steps of the checkpoint
        self._checkpoint = await save_checkpoint(retrainer, plan.run.checkpoints, state)
        self._store(CheckpointSaved(seconds=self._seconds, version=self._version, directory=str(self._checkpoint)))

    def _end(self, outcome: RunOutcome, reason: str) -> None:
        """End a session."""
        model = str(self._checkpoint / MODEL_DIRECTORY) if self._checkpoint else ""
        self._store(
            RunFinished(
                seconds=self._seconds, outcome=outcome, reason=reason, version=self._version, model_directory=model
            )
        )
        self._store.close()
