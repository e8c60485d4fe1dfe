"""Measures durations on your machine from the store of a run, so that nothing is measured twice.

    EngineReport, twice a second     steps, tokens, cached tokens, prefilled tokens ──► seconds
    StepFinished                     tokens ──► seconds; the phase "publishing"
    EngineLoaded, WeightsLoaded      a load, and the way of a version from the trainer to the engines
    GraderReport                     seconds of a grade
    trajectories                     lengths, by ordinal

The resulting curves are those of the machine, the model and the other processes that ran at the time.
"""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec

from freerun.config.recipe import Recipe
from freerun.errors import FreerunError
from freerun.events.events import EngineLoaded, EngineReport, GraderReport, StepFinished, WeightsLoaded
from freerun.events.reader import RunReader
from freerun.events.schema import StepRow, store_file
from freerun.simulation.costs import LinearEngine, LinearTrainer, WeightCosts
from freerun.simulation.fitting import fit_times
from freerun.simulation.lengths import RecordedLengths, measure_likeness
from freerun.simulation.run import Setup
from freerun.simulation.workload import Workload
from freerun.types import EngineStats

MIN_STEPS_FITTED = 4
MIN_REPORTS = 4
MIN_PREFILL_SHARE = 0.1
"""Minimum share of prefilled among computed tokens; below, a prefilled token counts as costly as a sampled one."""
_MAX_GROUPS = 4000
"""Number of groups whose lengths are kept, the oldest first."""


class FittedEngine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds per decode step, and per item in it."""

    step: float
    sequence: float
    cached_token: float
    prefill_token: float
    error: float
    """Root mean square error, relative to the mean."""


class FittedTrainer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds per training step, and per token in it."""

    step: float
    token: float
    error: float


class MeasuredTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations that do not depend on counts."""

    hold: float
    transfer: float
    load: float
    grade: float


class MeasuredLengths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt_tokens: int
    ordinals: list[int]
    groups: list[list[int]]
    """Tokens of each sample, by ordinal."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measurements of one run."""

    run: str
    engine: FittedEngine
    trainer: FittedTrainer
    seconds: MeasuredTimes
    lengths: MeasuredLengths

    @property
    def engine_costs(self) -> LinearEngine:
        fitted = self.engine
        return LinearEngine(fitted.step, fitted.sequence, fitted.cached_token, fitted.prefill_token)

    @property
    def trainer_costs(self) -> LinearTrainer:
        return LinearTrainer(self.trainer.step, self.trainer.token)

    @property
    def weights(self) -> WeightCosts:
        times = self.seconds
        return WeightCosts(hold_seconds=times.hold, transfer_seconds=times.transfer, load_seconds=times.load)

    @property
    def workload(self) -> Workload:
        lengths = self.lengths
        sampled = [length for group in lengths.groups for length in group]
        likeness = measure_likeness(lengths.groups)
        return Workload(
            lengths=RecordedLengths(dict(zip(lengths.ordinals, lengths.groups, strict=True))),
            prompt_tokens=lengths.prompt_tokens,
            grade_seconds=self.seconds.grade,
            words=f"as in run {self.run}: mean {fmean(sampled):,.0f} tokens, likeness {likeness:.2f}",
        )

    def setup(self, recipe: Recipe, *, num_warm_steps: int = 0) -> Setup:
        """The setup of a run by this recipe, with the measured machine and lengths."""
        workload = self.workload
        return Setup(
            recipe=recipe,
            engine_costs=self.engine_costs,
            trainer_costs=self.trainer_costs,
            lengths=workload.lengths,
            weights=self.weights,
            prompt_tokens=min(workload.prompt_tokens, recipe.data.max_prompt_tokens),
            grade_seconds=workload.grade_seconds,
            num_warm_steps=num_warm_steps,
        )

    def __str__(self) -> str:
        engine, trainer, times = self.engine, self.trainer, self.seconds
        return "\n".join(
            [
                f"engine    {_time(engine.step)} a step + {_time(engine.sequence)} a sequence + "
                f"{_time(engine.cached_token)} a cached token + {_time(engine.prefill_token)} a prefill token "
                f"(fits within {engine.error:.0%})",
                f"trainer   {_time(trainer.step)} a step + {_time(trainer.token)} a token "
                f"(fits within {trainer.error:.0%})",
                f"weights   hold the trainer {_time(times.hold)}, are on their way {_time(times.transfer)}, stop "
                f"an engine {_time(times.load)}",
                f"grade     {_time(times.grade)}",
                f"lengths   {self.workload.words}",
            ]
        )


def calibrate_run(directory: Path) -> Calibration:
    """Calibrate from the store of a run that trained at least a few steps."""
    with RunReader(store_file(directory)) as reader:
        return _Recorded(reader, directory).calibration()


@dataclass(frozen=True)
class _Recorded:
    """The measurements in a store."""

    reader: RunReader
    directory: Path

    def calibration(self) -> Calibration:
        if len(self._steps) < MIN_STEPS_FITTED:
            raise FreerunError(
                f"{self.directory} has trained {len(self._steps)} steps; a calibration needs {MIN_STEPS_FITTED}"
            )
        return Calibration(
            run=self.directory.absolute().name,
            engine=self._engine(),
            trainer=self._trainer(),
            seconds=self._times(),
            lengths=self._lengths,
        )

    @cached_property
    def _steps(self) -> list[StepRow]:
        return self.reader.steps()

    def _engine(self) -> FittedEngine:
        rows, seconds = [], []
        for before, after in self._report_pairs():
            num_steps = after.num_steps - before.num_steps
            spent = _working_seconds(after) - _working_seconds(before)
            if num_steps > 0 and spent > 0:
                tokens = after.num_tokens - before.num_tokens
                prefilled = after.num_prefill_tokens - before.num_prefill_tokens
                rows.append((num_steps, tokens, _attended_tokens(before, after), prefilled))
                seconds.append(spent)
        if len(rows) < MIN_REPORTS:
            raise FreerunError(
                f"{self.directory} has {len(rows)} reports of engines that generated; a calibration needs "
                f"{MIN_REPORTS}: let it run for longer"
            )
        (step, sequence, cached_token, prefill_token), error = _fit_engine(rows, seconds)
        return FittedEngine(
            step=step, sequence=sequence, cached_token=cached_token, prefill_token=prefill_token, error=error
        )

    def _report_pairs(self) -> Iterable[tuple[EngineStats, EngineStats]]:
        """Consecutive reports of the same process, without evaluations in between."""
        last: dict[str, EngineStats] = {}
        for event in self.reader.events("engine_report"):
            assert isinstance(event, EngineReport)
            before, last[event.worker] = last.get(event.worker), event.stats
            if before is None or event.stats.up_seconds < before.up_seconds:
                continue
            if before.evaluate_seconds == event.stats.evaluate_seconds and before.version is not None:
                yield before, event.stats

    def _trainer(self) -> FittedTrainer:
        prompts = self._lengths.prompt_tokens
        rows = [
            (1.0, step.metrics.get("num_tokens", 0.0) + prompts * sum(step.staleness_counts.values()))
            for step in self._steps
        ]
        seconds = [_training_seconds(row) for row in self._steps]
        (step, token), error = fit_times(rows, seconds)
        return FittedTrainer(step=step, token=token, error=error)

    def _times(self) -> MeasuredTimes:
        loads = [event for event in self.reader.events("engine_loaded") if isinstance(event, EngineLoaded)]
        load = median(event.load_seconds for event in loads) if loads else 0.0
        hold = median(dict(step.phases).get("publishing", 0.0) for step in self._steps)
        ended = {
            e.result.version: e.seconds for e in self.reader.events("step_finished") if isinstance(e, StepFinished)
        }
        # A version is published when all engines have loaded the previous one, and loaded when they have
        # drained. Both are simulated, so they do not count as transfer time.
        confirmed = {
            event.version: event.seconds
            for event in self.reader.events("weights_loaded")
            if isinstance(event, WeightsLoaded)
        }
        ways = [
            event.seconds
            - event.load_seconds
            - event.drain_seconds
            - max(ended[event.version], confirmed.get(event.version - 1, 0.0))
            for event in loads
            if event.version in ended
        ]
        transfer = max(0.0, median(ways) - hold) if ways else 0.0
        return MeasuredTimes(hold=hold, transfer=transfer, load=load, grade=self._grade_seconds())

    def _grade_seconds(self) -> float:
        newest: dict[str, GraderReport] = {}
        for event in self.reader.events("grader_report"):
            assert isinstance(event, GraderReport)
            newest[event.worker] = event
        num_graded = sum(report.num_graded for report in newest.values())
        return sum(report.busy_seconds for report in newest.values()) / num_graded if num_graded else 0.0

    @cached_property
    def _lengths(self) -> MeasuredLengths:
        groups: dict[int, list[int]] = {}
        prompts = []
        for step in self._steps:
            if len(groups) >= _MAX_GROUPS:
                break
            for row in self.reader.trajectories(step.version):
                sampled = sum(span.num_tokens for span in row.spans if span.version is not None)
                groups.setdefault(row.ordinal, []).append(sampled)
                prompts.append(len(row.prompt_token_ids))
        if not groups:
            raise FreerunError(f"{self.directory} has trained on nothing; a calibration needs its completions")
        return MeasuredLengths(
            prompt_tokens=max(1, round(fmean(prompts))),
            ordinals=sorted(groups),
            groups=[groups[ordinal] for ordinal in sorted(groups)],
        )


def _fit_engine(rows: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> tuple[list[float], float]:
    """Seconds per step, sampled token, cached token and prefilled token.

    Few prompt tokens come with each request, so a fit would attribute all costs of a request (messages, text)
    to them. The same products compute both kinds of tokens, so then one factor for both is a good
    approximation.
    """
    num_sampled, num_prefilled = (sum(row[column] for row in rows) for column in (1, 3))
    if num_prefilled >= MIN_PREFILL_SHARE * (num_sampled + num_prefilled):
        return fit_times(rows, seconds)
    computed = [(steps, sampled + prefilled, cached) for steps, sampled, cached, prefilled in rows]
    (step, token, cached_token), error = fit_times(computed, seconds)
    return [step, token, cached_token, token], error


def _attended_tokens(before: EngineStats, after: EngineStats) -> float:
    """Cached tokens of the steps between two reports; estimated from both ends if not counted."""
    if after.num_attended_tokens:
        return after.num_attended_tokens - before.num_attended_tokens
    return (after.num_steps - before.num_steps) * (before.cache_tokens_used + after.cache_tokens_used) / 2


def _training_seconds(step: StepRow) -> float:
    """Seconds of the step without the rest of the previous publication when the batch was sent."""
    held = dict(step.phases).get("publishing", 0.0)
    return max(1e-6, step.step_seconds - max(0.0, held - step.wait_seconds))


def _working_seconds(stats: EngineStats) -> float:
    """Seconds of computing, and of handling text and messages."""
    return stats.up_seconds - stats.idle_seconds - stats.load_seconds - stats.evaluate_seconds


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write as TOML, for people and for `read_calibration`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tables: dict[str, Any] = msgspec.to_builtins(calibration)
    lines = [f"# {line}" for line in str(calibration).splitlines()]
    lines += [f"run = {msgspec.json.encode(tables.pop('run')).decode()}"]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {value!r}" for key, value in table.items())]
    path.write_text("\n".join(lines) + "\n")


def read_calibration(path: Path) -> Calibration:
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), Calibration)
    except OSError as error:
        raise FreerunError(
            f"{path}: cannot be read ({error.strerror}); make a calibration with `freerun calibrate RUN`"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise FreerunError(
            f"{path}: is not a calibration ({error}); make one with `freerun calibrate RUN`"
        ) from error


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns" if seconds else "0 s"
