"""A run's state in Prometheus' text format, by a pure function; the page serves it at `/metrics`.

Names from a recipe or from user code (metrics, workers, outcomes) are values of labels, never names of metrics:
no text can break the format or add a family.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from freerun.events.health import LEVELS, examine
from freerun.events.metrics import RunState

SHARE_SECONDS = 60.0
"""The window of `freerun_time_share`."""
MetricKind = Literal["gauge", "counter"]
Labels = Mapping[str, str]
_ENGINE_COUNTERS = {
    "tokens": ("num_tokens", "Tokens sampled."),
    "interrupts": ("num_interrupts", "Sequences that a load of weights interrupted."),
    "loads": ("num_loads", "Loads of weights."),
    "load_seconds": ("load_seconds", "Time for which loads stopped decoding."),
    "recomputed_tokens": ("num_recomputed_tokens", "Cache entries computed again after loads."),
}


class MetricFamily(NamedTuple):
    """One metric with all its values."""

    name: str
    kind: MetricKind
    explanation: str
    samples: list[tuple[Labels, float | None]]
    """Values; unknown ones are omitted."""


def exposition(state: RunState, now: float) -> str:
    """All families of a run; `now` is on its clock."""
    lines = []
    for family in _families(state, now):
        known = [(labels, value) for labels, value in family.samples if value is not None]
        if not known:
            continue
        # The suffix of counters, by the conventions of Prometheus.
        name = f"freerun_{family.name}{'_total' if family.kind == 'counter' else ''}"
        lines += [f"# HELP {name} {family.explanation}", f"# TYPE {name} {family.kind}"]
        lines += [f"{name}{_labels({'run': state.name, **labels})} {_number(value)}" for labels, value in known]
    return "\n".join(lines) + "\n"


def _families(state: RunState, now: float) -> Iterator[MetricFamily]:
    yield from _of_progress(state, now)
    yield from _of_learning(state)
    yield from _of_engines(state)
    yield from _of_processes(state, now)
    findings = {finding.rule: finding.level for finding in examine(state, now)}
    severity = {level: float(len(LEVELS) - place) for place, level in enumerate(LEVELS)}
    found = [({"rule": rule}, severity[level]) for rule, level in findings.items()]
    yield MetricFamily("health", "gauge", "Rules that complain: 1 information, 2 warning, 3 alarm.", [*found])


def _of_progress(state: RunState, now: float) -> Iterator[MetricFamily]:
    is_running = bool(state.name) and state.finished is None
    yield _single("running", "Whether the run has not ended.", float(is_running))
    yield _single("seconds", "The run's clock.", now)
    yield _single("version", "Training steps made.", float(state.version))
    yield _single("num_steps", "Training steps asked for.", float(state.num_steps))
    yield _single("loaded_version", "The newest version that all engines use.", float(state.loaded_version))
    yield _single("eta_seconds", "Time left at the pace of the last steps.", state.eta_seconds(now))
    saved = state.checkpoint
    yield _single("checkpoint_version", "Of the newest checkpoint.", float(saved.version) if saved else None)
    yield _single("checkpoint_age_seconds", "Since it was saved.", now - saved.seconds if saved else None)


def _of_learning(state: RunState) -> Iterator[MetricFamily]:
    metrics = state.steps[-1].result.metrics if state.steps else {}
    values = [({"metric": name}, value) for name, value in metrics.items()]
    yield MetricFamily("train", "gauge", "Metrics of the last step.", [*values])
    if state.evals:
        row = state.evals[-1]
        yield _single("eval_version", "The version of the last evaluation.", float(row.version))
        yield _single("eval_accuracy", "Held-out accuracy.", row.accuracy)
        yield _single("eval_accuracy_low", "Lower end of its 95 % interval.", row.accuracy_low)
        yield _single("eval_accuracy_high", "Upper end of its 95 % interval.", row.accuracy_high)
    trained = [({"staleness": str(age)}, float(n)) for age, n in sorted(state.staleness_counts.items())]
    yield MetricFamily("trained_samples", "counter", "Samples trained on, by staleness.", [*trained])
    idle = float(state.num_steps_without_update)
    yield MetricFamily("steps_without_update", "counter", "Steps that changed no weights.", [({}, idle)])
    groups = [({"outcome": outcome}, float(n)) for outcome, n in sorted(state.groups.items())]
    yield MetricFamily("groups", "counter", "Groups by the outcome of their rollout.", [*groups])


def _of_engines(state: RunState) -> Iterator[MetricFamily]:
    engines = sorted(state.engines.items())
    for name, (field, explanation) in _ENGINE_COUNTERS.items():
        totals = [({"worker": worker}, track.total(field)) for worker, track in engines]
        yield MetricFamily(f"engine_{name}", "counter", explanation, [*totals])
    rates = [({"worker": worker}, track.tokens_per_second) for worker, track in engines]
    yield MetricFamily("engine_tokens_per_second", "gauge", "Over the last seconds.", [*rates])
    versions = [
        ({"worker": worker}, None if track.latest.version is None else float(track.latest.version))
        for worker, track in engines
    ]
    yield MetricFamily("engine_version", "gauge", "The version that samples now.", [*versions])
    sequences, cache = [], []
    for worker, track in engines:
        stats = track.latest
        kinds = {"running": stats.num_running, "waiting": stats.num_waiting, "evaluating": stats.num_evaluating}
        sequences += [({"worker": worker, "state": kind}, float(number)) for kind, number in kinds.items()]
        tokens = {"used": stats.cache_tokens_used, "total": stats.cache_tokens}
        cache += [({"worker": worker, "state": kind}, float(number)) for kind, number in tokens.items()]
    yield MetricFamily("engine_sequences", "gauge", "Sequences in an engine.", [*sequences])
    yield MetricFamily("engine_cache_tokens", "gauge", "Tokens of its cache.", [*cache])


def _of_processes(state: RunState, now: float) -> Iterator[MetricFamily]:
    shares = state.occupation.shares(now - SHARE_SECONDS, now)
    parts = [({"worker": w, "activity": what}, x) for w, by in shares.items() for what, x in by.items()]
    yield MetricFamily("time_share", "gauge", f"Share of the last {SHARE_SECONDS:.0f} s; adds up to 1.", [*parts])
    if state.queues is not None:
        counts = state.queues.counts
        waiting = {"running": counts.num_running, "ready": counts.num_ready}
        groups = [({"state": kind}, float(number)) for kind, number in waiting.items()]
        yield MetricFamily("queue_groups", "gauge", "Groups being made, and in the buffer.", [*groups])
        yield _single("gate_capacity", "Samples that may still start.", float(counts.gate_capacity))
    graded = [({"worker": worker}, float(track.num_graded)) for worker, track in sorted(state.graders.items())]
    failed = [({"worker": worker}, float(track.num_failed)) for worker, track in sorted(state.graders.items())]
    yield MetricFamily("grader_jobs", "counter", "Grades given, failures included.", [*graded])
    yield MetricFamily("grader_failures", "counter", "Grades that failed.", [*failed])
    uses = sorted(state.processes.items())
    seconds = [({"worker": worker}, use.cpu_seconds) for worker, use in uses]
    memory = [({"worker": worker}, float(use.memory_bytes)) for worker, use in uses]
    yield MetricFamily("process_cpu_seconds", "counter", "CPU time of a process.", [*seconds])
    yield MetricFamily("process_memory_bytes", "gauge", "Its resident memory.", [*memory])
    yield MetricFamily("worker_deaths", "counter", "Workers that died.", [({}, float(len(state.deaths)))])


def _single(name: str, explanation: str, value: float | None) -> MetricFamily:
    return MetricFamily(name, "gauge", explanation, [({}, value)])


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    valid = value.encode(errors="replace").decode()
    return valid.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
