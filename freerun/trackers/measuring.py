"""The curves of a run: what each event adds to them, under the names used by all trackers.

train/<metric>               metrics of the step
eval/accuracy                with accuracy_low and accuracy_high, and mean_length
sft/...                      supervised steps, counted by themselves
time/...                     the run's clock, the step, its phases; <worker>/<activity>: shares of the step's time
queue/...                    what waited after the step
engine/<worker>/...          the engines, at the end of the step
health/<rule>                1 information, 2 warning, 3 alarm; 0 when a rule no longer complains
"""

from collections.abc import Iterator

from freerun.events.events import AnyEvent, EvalFinished, RunFinished, SftStep, StepFinished
from freerun.events.health import LEVELS, examine
from freerun.events.metrics import RunState
from freerun.events.schema import Rewound
from freerun.trackers.reporter import AlarmRaised, Measured

SEVERITY = {level: float(len(LEVELS) - place) for place, level in enumerate(LEVELS)}
_TOTALS = ("num_tokens", "num_interrupts", "num_loads", "load_seconds", "num_recomputed_tokens")


class Measuring:
    """A listener that returns what each event adds; a pure function of the events so far."""

    def __init__(self) -> None:
        self.state = RunState()
        self._evaluated: set[int] = set()
        self._rules: set[str] = set()
        """Rules that have ever complained."""
        self._alarms: set[str] = set()
        """Rules in alarm now."""

    def __call__(self, event: AnyEvent | Rewound) -> Iterator[Measured | AlarmRaised]:
        self.state(event)
        match event:
            case StepFinished():
                values = {**_of_step(event), **self._of_shares(), **self._of_engines(), **self._of_health()}
                yield Measured(seconds=event.seconds, step=event.result.version, values=values)
                yield from self.alarms(event.seconds)
            case EvalFinished() if event.version not in self._evaluated:  # a resumed run repeats its first one
                self._evaluated.add(event.version)
                yield Measured(seconds=event.seconds, step=event.version, values=_of_eval(event))
            case SftStep():
                yield Measured(seconds=event.seconds, step=event.step, values=_of_sft(event), is_sft=True)
            case RunFinished():
                yield from self.alarms(event.seconds)

    def alarms(self, now: float) -> Iterator[AlarmRaised]:
        """Alarms that are new since the last call."""
        found = {f.rule: f for f in examine(self.state, now) if f.level == "alarm"}
        new = [finding for rule, finding in found.items() if rule not in self._alarms]
        self._alarms = {*found}
        for finding in new:
            yield AlarmRaised(seconds=now, step=self.state.version, finding=finding)

    def _of_shares(self) -> dict[str, float]:
        step = self.state.steps[-1]
        shares = self.state.occupation.shares(step.begin, step.seconds)
        return {f"time/{worker}/{what}": x for worker, by in shares.items() for what, x in by.items()}

    def _of_engines(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for worker, track in self.state.engines.items():
            values |= {f"engine/{worker}/{name}": track.total(name) for name in _TOTALS}
            values[f"engine/{worker}/num_running"] = float(track.latest.num_running)
            values[f"engine/{worker}/cache_tokens_used"] = float(track.latest.cache_tokens_used)
            if (rate := track.tokens_per_second) is not None:
                values[f"engine/{worker}/tokens_per_second"] = rate
        return values

    def _of_health(self) -> dict[str, float]:
        now = {finding.rule: SEVERITY[finding.level] for finding in examine(self.state, self.state.seconds)}
        self._rules |= now.keys()
        return {f"health/{rule}": now.get(rule, 0.0) for rule in sorted(self._rules)}


def _of_step(event: StepFinished) -> dict[str, float]:
    values = {f"train/{name}": value for name, value in event.result.metrics.items()}
    values["time/seconds"] = event.seconds
    values["time/step_seconds"], values["time/wait_seconds"] = event.step_seconds, event.wait_seconds
    for phase, seconds in event.result.phases:
        key = f"time/{phase}_seconds"
        values[key] = values.get(key, 0.0) + seconds
    if event.queues is not None:
        values["queue/num_running"] = float(event.queues.num_running)
        values["queue/num_ready"] = float(event.queues.num_ready)
        values["queue/gate_capacity"] = float(event.queues.gate_capacity)
    return values


def _of_eval(event: EvalFinished) -> dict[str, float]:
    names = ("accuracy", "accuracy_low", "accuracy_high", "mean_length")
    return {f"eval/{name}": getattr(event, name) for name in names}


def _of_sft(event: SftStep) -> dict[str, float]:
    values = {"loss": event.loss, "held_out_loss": event.held_out_loss, "lr": event.lr}
    return {f"sft/{name}": value for name, value in values.items() if value is not None}
