"""The checkpoint of the best evaluated version is kept, whenever its evaluation ends, and can be found."""

import asyncio
import math
import random
from pathlib import Path

import pytest
from health_runs import an_eval
from recorded_events import a_start, make_step, write
from small_checkpoints import begin, save

from freerun.config.recipe import EvalConfig
from freerun.errors import CheckpointError
from freerun.events.best import best_eval
from freerun.events.events import EvalSkipped
from freerun.events.run_files import saved_versions
from freerun.events.store import Store
from freerun.session.evaluation_job import find_model
from freerun.session.kept_versions import KeptVersions, past_evals

EVERY = EvalConfig(every_steps=10)


def save_as_a_run_does(kept: KeptVersions, checkpoints: Path, version: int, *, keep: int = 1) -> None:
    kept.expect(version)
    asyncio.run(begin(checkpoints, version).seal(keep=keep, protected=kept.protected()))


def test_the_best_of_equal_ones_is_the_newest_and_what_was_not_measured_is_none() -> None:
    evals = [an_eval(0, 0.5), an_eval(10, 0.7), an_eval(20, 0.7), an_eval(30, math.nan), an_eval(40, 0.6)]
    found = best_eval(evals)
    assert found is not None
    assert found.version == 20
    without = best_eval(evals, kept={10, 40})
    assert without is not None
    assert without.version == 10
    assert best_eval([an_eval(10, math.nan)]) is None


def test_the_best_checkpoint_stays_when_newer_ones_come(tmp_path: Path) -> None:
    kept = KeptVersions(EVERY, tmp_path)
    for version, accuracy in ((10, 0.6), (20, 0.8), (30, 0.7), (40, 0.75)):
        save_as_a_run_does(kept, tmp_path, version)
        kept(an_eval(version, accuracy))
    assert saved_versions(tmp_path) == {20, 40}
    kept(an_eval(40, 0.9))
    save_as_a_run_does(kept, tmp_path, 45)
    assert saved_versions(tmp_path) == {40, 45}


def test_a_version_whose_evaluation_still_runs_is_not_removed(tmp_path: Path) -> None:
    kept = KeptVersions(EVERY, tmp_path)
    for version in (10, 15, 20):
        save_as_a_run_does(kept, tmp_path, version)
    assert saved_versions(tmp_path) == {10, 20}
    kept(EvalSkipped(seconds=1.0, version=20, reason="the evaluation of version 10 still runs"))
    save_as_a_run_does(kept, tmp_path, 25)
    assert saved_versions(tmp_path) == {10, 25}
    kept(an_eval(10, 0.4))
    save_as_a_run_does(kept, tmp_path, 30)
    assert saved_versions(tmp_path) == {10, 30}, "the best so far"


def test_without_evaluations_only_the_newest_stay(tmp_path: Path) -> None:
    kept = KeptVersions(EVERY, tmp_path, is_on=False)
    for version in (10, 20, 30):
        save_as_a_run_does(kept, tmp_path, version, keep=2)
    assert saved_versions(tmp_path) == {20, 30}


@pytest.mark.parametrize("seed", range(6))
def test_at_any_time_the_best_evaluated_version_can_be_had(tmp_path: Path, seed: int) -> None:
    """Evaluations that end late, are skipped, and sessions that are cut off and resumed."""
    rng = random.Random(seed)
    evals = [an_eval(0, 0.3)]
    kept, running = KeptVersions(EVERY, tmp_path, evals=evals), list[int]()
    for version in range(1, 120):
        if version % 10 == 0 or rng.random() < 0.1:
            save_as_a_run_does(kept, tmp_path, version, keep=rng.randint(1, 2))
        if version % 10 == 0:
            if running:
                kept(EvalSkipped(seconds=1.0, version=version, reason="another one runs"))
            else:
                running.append(version)
        if running and rng.random() < 0.1:
            evals.append(an_eval(running.pop(), rng.random()))
            kept(evals[-1])
        if rng.random() < 0.03:  # killed: what was not evaluated is forgotten
            newest = max(saved_versions(tmp_path), default=0)
            evals = [row for row in evals if row.version <= newest]
            kept, running = KeptVersions(EVERY, tmp_path, evals=evals, version=newest), []
        best = best_eval(evals)
        assert best is not None
        assert best.version in saved_versions(tmp_path) | {0}


def test_a_resumed_run_knows_what_its_sessions_before_have_evaluated_and_nothing_of_what_was_rewound(
    tmp_path: Path,
) -> None:
    write(tmp_path, a_start(), make_step(1), an_eval(1, 0.5), make_step(2), an_eval(2, 0.9))
    with Store(tmp_path) as store:
        store.rewind(1, seconds=2.0)
    evals = past_evals(tmp_path)
    assert [(row.version, row.accuracy) for row in evals] == [(1, 0.5)]
    save(tmp_path / "checkpoints", 1)
    kept = KeptVersions(EVERY, tmp_path / "checkpoints", evals=evals, version=1)
    assert kept.protected() == {1}


# ---- finding it -----------------------------------------------------------------------------------------------


def a_run(tmp_path: Path, *accuracies: tuple[int, float]) -> Path:
    (tmp_path / "config.toml").write_text('[model]\npath = "models/none"\n')
    for version, _ in accuracies:
        if version:
            save(tmp_path / "checkpoints", version)
    write(tmp_path, a_start(), *(an_eval(version, accuracy) for version, accuracy in accuracies))
    return tmp_path


def test_the_best_version_is_found_by_its_name(tmp_path: Path) -> None:
    run = a_run(tmp_path, (0, 0.1), (2, 0.8), (4, 0.5))
    assert find_model(run, "best") == (run / "checkpoints" / "step-2" / "model", 2)
    assert find_model(run)[1] == 4


def test_a_run_that_was_never_evaluated_has_no_best_version(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    with pytest.raises(CheckpointError, match="no held-out evaluation, so no best version"):
        find_model(run, "best")


def test_the_best_version_may_be_the_model_that_the_run_began_with(tmp_path: Path) -> None:
    run = a_run(tmp_path, (0, 0.9), (4, 0.5))
    model = tmp_path / "began-with"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (run / "config.toml").write_text(f'[model]\npath = "{model}"\n')
    assert find_model(run, "best") == (model, 0)
