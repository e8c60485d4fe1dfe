"""How far a study is, read from its runs' directories: nothing else remembers it.

A run counts as done only if its store says so and its settings are those this study asks for; a directory that
holds another run is refused rather than mixed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from freerun.config.load import as_toml, key_types
from freerun.config.recipe import Recipe
from freerun.errors import FreerunError
from freerun.model.hub import local_directory
from freerun.reports.record import CONFIG_FILE, RunRecord, read_config, read_run
from freerun.reports.study import Study, StudyRun

RunState = Literal["to run", "to resume", "running", "finished"]


def state_of(run: StudyRun) -> RunState:
    """What is left to do for a run; refuses a directory with steps of a run that is not this one."""
    if not (run.directory / CONFIG_FILE).is_file():
        return "to run"
    difference = _difference(run)
    try:
        record = read_run(run.directory)
    except FreerunError:  # cut off before its store was made
        return "to run" if difference else "to resume"
    if record.summary.state == "running":
        return "running"
    if difference and not record.steps and not record.is_finished:
        return "to run"  # it failed before its first step, and the command was corrected
    if difference:
        raise FreerunError(
            f'the run "{run.directory}" was made with {difference}; '
            "give this study a directory of its own with --out"
        )
    return "finished" if record.is_finished else "to resume"


def finished_records(runs: Sequence[StudyRun]) -> dict[str, RunRecord]:
    """The finished runs, by name."""
    return {run.name: read_run(run.directory) for run in runs if state_of(run) == "finished"}


def find_failures(study: Study) -> dict[str, str]:
    """Why, for each run that was tried and failed."""
    reasons = {run.name: _failure(study, run) for run in study.all_runs}
    return {name: reason for name, reason in reasons.items() if reason}


def why_it_ended(study: Study, run: StudyRun) -> str:
    """The reason a run gave for its end, else the last line it printed."""
    try:
        reason = read_run(run.directory).summary.reason
    except FreerunError:
        reason = ""
    log = study.log_file(run)
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    return reason or (lines[-1] if lines else "it ended and said nothing")


def _failure(study: Study, run: StudyRun) -> str:
    if not study.log_file(run).is_file():
        return ""  # never tried
    try:
        has_failed = read_run(run.directory).summary.state in ("failed", "crashed")
    except FreerunError:  # it did not even get a store
        has_failed = True
    return why_it_ended(study, run) if has_failed else ""


def _difference(run: StudyRun) -> str:
    """The first setting of the run that is not the study's; empty if it is the same run."""
    saved, wanted = read_config(run.directory), _settings(run.recipe)
    for key in sorted(saved.keys() | wanted.keys()):
        if key == "run.directory":  # it is here, by whatever path it was named
            continue
        found, asked = (_comparable(key, values.get(key)) for values in (saved, wanted))
        if found != asked:
            return f"{key} = {as_toml(found)}, not {as_toml(asked)}"
    return ""


def _settings(recipe: Recipe) -> dict[str, Any]:
    keys = [key.split(".") for key in key_types()]
    return {f"{section}.{name}": getattr(getattr(recipe, section), name) for section, name in keys}


def _comparable(key: str, value: Any) -> Any:
    if key == "model.path" and value:
        return str(Path(local_directory(value)).resolve())
    return list(value) if isinstance(value, tuple) else value
