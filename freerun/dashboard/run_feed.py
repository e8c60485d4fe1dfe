"""The feed of the place Run: health, who waits for whom, learning, current activity.

Numbers come from the `RunState` that the terminal also shows; unknown values are None.
"""

from collections.abc import Mapping

import msgspec

from freerun.dashboard.source import Source, finite
from freerun.events.health import examine
from freerun.events.metrics import RunState
from freerun.events.reader import RunReader, RunSummary
from freerun.events.schema import TrajectoryRow

SHARES_SECONDS = 60.0
"""Length of the window of "who waits for whom"."""
NUM_NEWEST = 8
_TEXT = 300


def run_feed(source: Source, params: Mapping[str, str]) -> object:
    """Everything that the place Run shows, except curves."""
    status = source.status()
    state, now = source.state, source.now(status)
    shown = {
        **_progress(source, status, now),
        "health": [msgspec.to_builtins(finding) for finding in examine(state, now)] if state.name else [],
        "held": _held(state),
        "shares": _shares(state, now),
        "activities": _activities(state),
        "queues": msgspec.to_builtins(state.queues) if state.queues else None,
        "batch": {"groups": state.prompts_per_step or None, "group_size": state.group_size or None},
        "totals": _totals(state),
        "sft": [_sft_step(state, i) for i in _every(len(state.sft), 200)],
    }
    return shown | {"newest": _newest(source, status)}


def _progress(source: Source, status: RunSummary | None, now: float) -> dict[str, object]:
    state = source.state
    checkpoint = state.checkpoint
    return {
        "name": state.name or source.directory.name,
        "directory": str(source.directory),
        "state": status.state if status else "starting",
        "reason": (status.reason if status else "") or (state.finished.reason if state.finished else ""),
        "step": state.version,
        "num_steps": state.num_steps,
        "start_version": state.start_version,
        "started": finite(state.started),
        "seconds": finite(now),
        "seconds_left": finite(state.eta_seconds(now)) if status and status.state == "running" else None,
        "loaded_version": state.loaded_version,
        "num_engines": len(state.engines) or None,
        "checkpoint": {"version": checkpoint.version, "seconds": finite(checkpoint.seconds)}
        if checkpoint
        else None,
        "model_directory": state.finished.model_directory if state.finished else "",
        "deaths": len(state.deaths),
        "is_sft_only": state.is_sft_only,
    }


def _held(state: RunState) -> dict[str, object]:
    """Guarantees that the page can confirm: the staleness bound, and the weights."""
    return {
        "max_staleness": state.max_staleness,
        "worst_staleness": state.worst_staleness,
        "is_bound_held": state.is_bound_held,
        "num_trained": state.num_trained,
        "loaded_version": state.loaded_version,
        "version": state.version,
        "num_steps_seen": state.num_steps_seen,
        "num_steps_without_update": state.num_steps_without_update,
        "why_no_update": state.last_reason_without_update,
    }


def _shares(state: RunState, now: float) -> dict[str, object]:
    """Shares over the last minute; for an ended run, over the last known minutes."""
    end = now if state.finished is None else state.finished.seconds
    begin = max(state.started, end - SHARES_SECONDS)
    shares = state.occupation.shares(begin, end)
    workers = {name: {what: finite(share) for what, share in of.items()} for name, of in shares.items()}
    return {"begin": finite(begin), "end": finite(end), "workers": workers}


def _activities(state: RunState) -> list[dict[str, object]]:
    return [
        {
            "worker": name,
            "since": finite(activity.seconds),
            "state": activity.doing.state,
            "what": activity.doing.what,
            "num_done": activity.doing.num_done,
            "num_total": activity.doing.num_total,
            "memory_bytes": state.processes[name].memory_bytes if name in state.processes else None,
            "cpu_seconds": finite(state.processes[name].cpu_seconds) if name in state.processes else None,
        }
        for name, activity in sorted(state.activities.items())
    ]


def _totals(state: RunState) -> dict[str, object]:
    engines = state.engines
    running = [engine.latest for engine in engines.values()]
    return {
        "generated_tokens_per_second": finite(state.generated_tokens_per_second),
        "trained_tokens_per_second": finite(state.trained_tokens_per_second),
        "num_tokens": state.engine_total("num_tokens") if engines else None,
        "num_interrupts": state.engine_total("num_interrupts") if engines else None,
        "num_loads": state.engine_total("num_loads") if engines else None,
        "num_recomputed_tokens": state.engine_total("num_recomputed_tokens") if engines else None,
        "load_seconds": finite(state.engine_total("load_seconds")) if engines else None,
        "num_running": sum(stats.num_running for stats in running) if engines else None,
        "num_waiting": sum(stats.num_waiting for stats in running) if engines else None,
        "num_slots": sum(stats.num_slots for stats in running) or None,
        "num_evaluating": sum(stats.num_evaluating for stats in running) if engines else None,
        "cache_tokens_used": sum(stats.cache_tokens_used for stats in running) if engines else None,
        "cache_tokens": sum(stats.cache_tokens for stats in running) or None,
        "groups": dict(state.groups),
        "last_failure": state.last_failure,
        "staleness_counts": {str(age): number for age, number in sorted(state.staleness_counts.items())},
        "graders": {
            name: {
                "num_graded": track.num_graded,
                "num_failed": track.num_failed,
                "slowest_seconds": finite(track.slowest_seconds),
            }
            for name, track in sorted(state.graders.items())
        },
    }


def _sft_step(state: RunState, i: int) -> dict[str, object]:
    step = state.sft[i]
    return {"step": step.step, "num_steps": step.num_steps, "loss": step.loss, "held_out_loss": step.held_out_loss}


def _every(number: int, most: int) -> list[int]:
    """At most `most` evenly spaced indices, including the last."""
    distance = max(1, -(-number // most))
    return list(range(number - 1, -1, -distance))[::-1]


def _newest(source: Source, status: RunSummary | None) -> list[dict[str, object]]:
    """One sample from each of the last trained groups."""
    if status is None or not source.state.num_steps_seen:
        return []
    with source.reader() as reader:
        rows = _last_batch(reader)
    by_group: dict[int, list[TrajectoryRow]] = {}
    for row in rows:
        by_group.setdefault(row.ordinal, []).append(row)
    chosen = [group[group[0].version % len(group)] for group in list(by_group.values())[-NUM_NEWEST:]]
    return [
        {
            "step": row.version,
            "ordinal": row.ordinal,
            "sample": row.sample,
            "key": row.key,
            "prompt": row.prompt[-_TEXT:],
            "completion": row.completion[:_TEXT],
            "reward": finite(row.reward),
            "is_correct": row.is_correct,
        }
        for row in reversed(chosen)
    ]


def _last_batch(reader: RunReader) -> list[TrajectoryRow]:
    last = reader.last_step()
    return reader.trajectories(last.version) if last else []
