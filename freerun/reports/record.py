"""A run as reports see it: its settings, its series, and a few summary numbers.

Everything is read from the run directory: config.toml and the store. `seconds` are seconds of training, the
run's clock without its pauses:

    start-ups       from the start of a session to its first weights in the engines, warm start included
    evaluations     of a synchronous run, which waits for each. Other runs sample them beside their rollouts;
                    that cost stays in
"""

import math
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from freerun.errors import FreerunError
from freerun.events.events import AnyEvent, EvalRow, RunFinished, RunStarted, WeightsLoaded
from freerun.events.reader import RunReader, RunSummary
from freerun.events.schema import Rewound, StepRow
from freerun.reports.intervals import mean
from freerun.session.run_directory import CONFIG_FILE

HELD_OUT = "held_out_accuracy"
"""The only series that comes from evaluations; the others are metrics of the steps, by name."""


@dataclass(frozen=True)
class Point:
    """One value of a series, with its position on each axis."""

    step: int
    seconds: float
    trained_tokens: float
    value: float


@dataclass(frozen=True)
class RunRecord:
    """A run, read once."""

    path: Path
    summary: RunSummary
    config: dict[str, Any]
    """Values by dotted key."""
    steps: list[StepRow]
    evals: list[EvalRow]
    pauses: list[tuple[float, float]]
    """(begin, end) of each pause on the run's clock; see the module docstring."""
    wall_seconds: float
    """The run's clock at its last event."""

    @property
    def name(self) -> str:
        return self.path.absolute().name

    @property
    def seed(self) -> int:
        return int(self.config.get("run.seed", 0))

    @property
    def is_finished(self) -> bool:
        return self.summary.state == "finished"

    @property
    def final_eval(self) -> EvalRow | None:
        """The last evaluation that has an accuracy."""
        return next((row for row in reversed(self.evals) if math.isfinite(row.accuracy)), None)

    def metric_names(self) -> list[str]:
        """Every series this run has."""
        names = {name for step in self.steps for name in step.metrics}
        return [*([HELD_OUT] if self.evals else []), *sorted(names)]

    def series(self, metric: str) -> list[Point]:
        """A metric over the run; an accuracy is placed where its version was made, not where it was measured."""
        if metric == HELD_OUT:
            values = {row.version: row.accuracy for row in self.evals}
        else:
            values = {step.version: step.metrics[metric] for step in self.steps if metric in step.metrics}
        return [
            Point(version, *self._axes[version], value)
            for version, value in sorted(values.items())
            if version in self._axes and math.isfinite(value)
        ]

    @cached_property
    def numbers(self) -> dict[str, float]:
        """The summary numbers, then the mean of each metric over the steps; nan if there is none."""
        accuracies = [row.accuracy for row in self.evals if math.isfinite(row.accuracy)]
        seconds, tokens = self._axes[max(self._axes)]
        staleness: Counter[int] = Counter()
        for step in self.steps:
            staleness.update(step.staleness_counts)
        numbers = {
            "first_accuracy": next((row.accuracy for row in self.evals if row.version == 0), math.nan),
            "final_accuracy": accuracies[-1] if accuracies else math.nan,
            "best_accuracy": max(accuracies, default=math.nan),
            "tokens_per_second": tokens / seconds if seconds > 0 else math.nan,
            "seconds": seconds if self.steps else math.nan,
            "trained_tokens": tokens,
            "staleness_mean": mean(staleness.elements()),
            "staleness_max": float(max(staleness)) if staleness else math.nan,
        }
        metrics = [name for name in self.metric_names() if name != HELD_OUT and name not in numbers]
        return numbers | {name: mean(point.value for point in self.series(name)) for name in metrics}

    @cached_property
    def _axes(self) -> dict[int, tuple[float, float]]:
        """Seconds of training and tokens trained on, by version."""
        axes, tokens = {0: (0.0, 0.0)}, 0.0
        for step in self.steps:
            tokens += step.metrics.get("num_tokens", 0.0)
            paused = sum(end - begin for begin, end in self.pauses if end <= step.seconds)
            axes[step.version] = (step.seconds - paused, tokens)
        return axes


def read_run(path: Path) -> RunRecord:
    """Read a run directory; a running run is read as far as it is written."""
    config = read_config(path)
    with RunReader(path) as reader:
        ends = [event.seconds for event in reader.events("run_finished") if isinstance(event, RunFinished)]
        steps, evals = reader.steps(), reader.evals()
        events = list(reader.events("run_started", "weights_loaded"))
        is_synchronous = config.get("buffer.max_staleness") == 0
        return RunRecord(
            path=path,
            summary=reader.status(),
            config=config,
            steps=steps,
            evals=evals,
            pauses=find_start_ups(events) + (find_evaluations(events, steps, evals) if is_synchronous else []),
            wall_seconds=max([*ends, steps[-1].seconds if steps else 0.0]),
        )


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a run's config.toml by dotted key, including keys this freerun does not know."""
    file = path / CONFIG_FILE
    try:
        sections = tomllib.loads(file.read_text())
    except OSError:
        raise FreerunError(
            f'"{path}" is not a run directory (no {CONFIG_FILE}); name one, such as runs/demo'
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FreerunError(f"{file}: not valid TOML ({error}); restore the file") from None
    return by_dotted_key(sections)


def by_dotted_key(sections: dict[str, Any]) -> dict[str, Any]:
    """`{"train": {"lr": 1e-5}}` as `{"train.lr": 1e-5}`."""
    return {
        f"{section}.{key}": value
        for section, table in sections.items()
        if isinstance(table, dict)
        for key, value in table.items()
    }


def find_start_ups(events: Iterable[AnyEvent | Rewound]) -> list[tuple[float, float]]:
    """The intervals from a session's start to its first weights in the engines."""
    start_ups: list[tuple[float, float]] = []
    begin: float | None = None
    for event in events:
        if isinstance(event, RunStarted):
            begin = event.seconds
            # A session continues its checkpoint's clock; later events of an earlier session are undone.
            start_ups = [known for known in start_ups if known[1] <= begin]
        elif isinstance(event, WeightsLoaded) and begin is not None:
            start_ups.append((begin, event.seconds))
            begin = None
    return start_ups


def find_evaluations(
    events: Iterable[AnyEvent | Rewound], steps: Iterable[StepRow], evals: Iterable[EvalRow]
) -> list[tuple[float, float]]:
    """The intervals from new weights to the end of their evaluation, as far as the next step waited for it."""
    loaded = {event.version: event.seconds for event in events if isinstance(event, WeightsLoaded)}
    waits = {step.version - 1: step.wait_seconds for step in steps}
    return [
        (max(loaded[row.version], row.seconds - waits[row.version]), row.seconds)
        for row in evals
        if row.version in loaded and row.version in waits
    ]
