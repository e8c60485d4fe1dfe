"""The runs of a directory, and several of them side by side.

A request may only name runs of the directory; unknown names are ignored.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from freerun.dashboard.curves import curves_of
from freerun.dashboard.settings import SETTINGS_OF_PLACE, settings_of
from freerun.dashboard.source import Source, finite, read_settings, runs_inside
from freerun.events.events import Provenance
from freerun.events.reader import RunReader, list_runs
from freerun.events.schema import StoreError

MAX_COMPARED = 12
SEED = "run.seed"
COMPARED_CURVES = ("reward", "accuracy", "completion_length", "entropy", "effective_sample_size", "staleness_mean")


def runs_feed(source: Source, params: Mapping[str, str]) -> object:
    """Every run of the directory, newest first."""
    inside = runs_inside(source.runs)
    runs = [
        {
            "name": run.name,
            "state": run.state,
            "reason": run.reason[:300],
            "step": run.version,
            "num_steps": run.num_steps,
            "reward": run.reward,
            "accuracy": run.accuracy,
            "updated": finite(run.updated, 12),
            "is_this": run.name == source.directory.name,
        }
        for run in list_runs(source.runs)
        if run.name in inside
    ]
    return {"directory": str(source.runs), "runs": runs}


def compare_feed(source: Source, params: Mapping[str, str]) -> object:
    """The comma-separated `runs`: curves, evaluations, settings that differ, and which are seeds of one run."""
    inside = runs_inside(source.runs)
    names = [name for name in dict.fromkeys(params.get("runs", "").split(",")) if name in inside][:MAX_COMPARED]
    compared = [run for name in names if (run := _run(name, inside[name])) is not None]
    return {
        "runs": [run["shown"] for run in compared],
        "families": _families(compared),
        "differences": _differences(compared),
    }


def _run(name: str, directory: Path) -> dict[str, Any] | None:
    """One run; None if its store cannot be read."""
    try:
        with RunReader(directory) as reader:
            steps, evals, provenance = reader.steps(), reader.evals(), reader.provenance()
    except StoreError:
        return None
    curves: Any = curves_of(steps, evals)
    kept = {metric: curves["metrics"][metric] for metric in COMPARED_CURVES if metric in curves["metrics"]}
    shown = {"name": name, "x": curves["x"], "metrics": kept, "evals": curves["evals"]}
    chosen = settings_of(read_settings(directory))
    return {"shown": shown, "chosen": chosen, "settings": chosen | _made_with(provenance)}


def _made_with(provenance: Sequence[Provenance]) -> dict[str, str]:
    """The provenance of the last session."""
    if not provenance:
        return {}
    values = msgspec.to_builtins(provenance[-1])
    return {f"made with: {name}": str(value)[:80] for name, value in values.items() if value}


def _families(compared: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Indices of runs that differ only in their seed, grouped; a run without settings is alone."""
    families: dict[Any, list[int]] = {}
    for place, run in enumerate(compared):
        chosen = {key: value for key, value in run["chosen"].items() if key not in (SEED, *SETTINGS_OF_PLACE)}
        families.setdefault(tuple(sorted(chosen.items())) or place, []).append(place)
    return list(families.values())


def _differences(compared: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Settings that differ between the runs, except the location of a run."""
    keys = list(dict.fromkeys(key for run in compared for key in run["settings"]))
    rows = [(key, [run["settings"].get(key) for run in compared]) for key in keys if key not in SETTINGS_OF_PLACE]
    return [{"key": key, "values": values} for key, values in rows if len(set(values)) > 1]
