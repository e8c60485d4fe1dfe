"""Forks of real runs: with the same settings the same bits, nothing trained on twice, refusals in time."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from live_runs import LIVE, LiveRun, ask, rate, taste
from tiny_runs import ROOT, Run, make_run

from freerun.cli.main import main
from freerun.config.load import load_recipe
from freerun.controller.checkpoint import read_checkpoint
from freerun.events.batches import recorded_checksums
from freerun.events.reader import RunReader
from freerun.events.session_rows import recorded_sessions
from freerun.replay.fork import plan_fork

pytestmark = pytest.mark.slow

COMMON = ("--train.num_threads", "1", "--eval.every_steps", "100", "--train.num_steps", "7")
SYNCHRONOUS = ("--buffer.max_staleness", "0")


def train(directory: Path, *options: str) -> Path:
    run = Run(make_run(directory), *COMMON, *options)
    assert run.wait(240) == 0, run.output
    return run.reader_path


def fork(run: Path, version: int, name: str, *settings: str) -> Path:
    """`freerun fork` as a user starts it; the new run."""
    command = ["fork", str(run), "--at", str(version), "--run.name", name, *settings]
    ended = subprocess.run(
        [sys.executable, "-m", "freerun.cli.main", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return run.parent / name


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven steps, checkpoints with optimizer at 3, 6 and 7."""
    kept = ("--checkpoint.keep_optimizer", "true", "--checkpoint.keep", "5")
    return train(tmp_path_factory.mktemp("synchronous"), *SYNCHRONOUS, *kept)


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven steps; its checkpoints have no optimizer any more."""
    fresh = ("--buffer.max_staleness", "3", "--buffer.keep_fresh", "true")
    return train(tmp_path_factory.mktemp("asynchronous"), *fresh)


def samples(run: Path, steps: Sequence[int]) -> list[tuple[int, int, bytes, bytes]]:
    with RunReader(run) as reader:
        return [
            (row.ordinal, row.sample, row.token_ids.tobytes(), row.logprobs.tobytes())
            for step in steps
            for row in reader.trajectories(step)
        ]


def checksums(run: Path) -> dict[int, str]:
    with RunReader(run) as reader:
        return recorded_checksums(reader)


def assert_nothing_twice(run: Path, *, num_steps: int) -> None:
    """Every prompt that was taken was trained on once, or waits in the checkpoint."""
    with RunReader(run) as reader:
        reader.verify()
        trained = reader.trained_ordinals()
    state = read_checkpoint(run / "checkpoints" / f"step-{num_steps}").state
    waiting = [group.ordinal for group in state.buffer.ready] + list(state.buffer.to_restart)
    assert len(trained) == 3 * num_steps
    assert sorted([*trained, *waiting]) == list(range(state.cursor))


@pytest.mark.parametrize("version", [3, 5], ids=["from a checkpoint", "by replay"])
def test_a_fork_with_the_same_settings_of_a_synchronous_run_is_that_run(synchronous: Path, version: int) -> None:
    assert (synchronous / "checkpoints" / f"step-{version}").is_dir() == (version == 3)
    forked = fork(synchronous, version, f"same-{version}")
    assert checksums(forked) == checksums(synchronous)
    assert samples(forked, range(1, 8)) == samples(synchronous, range(1, 8))
    assert_nothing_twice(forked, num_steps=7)


def test_a_fork_of_a_fork_goes_on_with_the_settings_of_its_origin(
    synchronous: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = fork(synchronous, 4, "first", "--train.lr", "0.002")
    second = fork(first, 6, "second", "--objective.clip_high", "0.1", "--train.num_steps", "8")
    recipe = load_recipe(second / "config.toml", [])
    assert (recipe.train.lr, recipe.objective.clip_high, recipe.train.num_steps) == (0.002, 0.1, 8)
    known = checksums(second)
    assert {version: known[version] for version in range(5)} == {
        version: checksums(synchronous)[version] for version in range(5)
    }
    assert (known[5], known[6]) == (checksums(first)[5], checksums(first)[6])
    assert known[5] != checksums(synchronous)[5]
    with RunReader(second) as reader:
        origins = [session.origin for session in recorded_sessions(reader) if session.origin]
    assert [origin.partition(",")[0] for origin in origins] == [
        f"forked from {synchronous} at version 4",
        f"forked from {first} at version 6",
    ]
    assert_nothing_twice(second, num_steps=8)
    assert main(["show", str(second)]) == 0
    assert f"forked from {first} at version 6, with objective.clip_high = 0.1 (was 0.2)" in capsys.readouterr().out
    assert main(["replay", str(second)]) == 0  # each step with the settings of its session
    assert "8 of 8 versions have the recorded checksum" in capsys.readouterr().out


def test_a_fork_at_the_last_version_of_an_asynchronous_run_that_dropped_its_optimizer(asynchronous: Path) -> None:
    longer = fork(asynchronous, 7, "longer", "--train.num_steps", "9")
    assert {version: checksums(longer)[version] for version in range(8)} == checksums(asynchronous)
    assert_nothing_twice(longer, num_steps=9)


def test_a_fork_of_an_asynchronous_run_without_a_checkpoint_trains_on_nothing_twice(asynchronous: Path) -> None:
    [lost, *_] = [
        warning
        for warning in plan_fork(asynchronous, version=4, overrides=["--run.name", "between"]).warnings
        if "keep_fresh" in warning
    ]
    assert lost.startswith("buffer.keep_fresh begins again")
    forked = fork(asynchronous, 4, "between", "--train.lr", "0.003")
    assert samples(forked, range(1, 5)) == samples(asynchronous, range(1, 5))
    assert_nothing_twice(forked, num_steps=7)
    resumed = Run(forked.parents[1] / "tiny.toml", "--run.name", "between", "--resume", "--train.num_steps", "8")
    assert resumed.wait(240) == 0, resumed.output
    assert_nothing_twice(forked, num_steps=8)


def test_the_fork_of_a_run_on_live_traffic_waits_for_its_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LiveRun(make_run(tmp_path), *LIVE, "--checkpoint.every_steps", "1", directory=tmp_path) as run:
        run.until_served()
        with run.openai() as client:
            while run.version < 3:
                reply_id, text = ask(client, "^12,18>")
                rate(client, reply_id, taste(text))
        assert run.stop() == 130, run.output
    assert main(["fork", str(run.run_path), "--at", "2", "--run.name", "forked"]) == 0
    forked = run.run_path.with_name("forked")
    assert f"freerun serve {forked} --resume" in capsys.readouterr().out
    with LiveRun(forked, "--resume", directory=tmp_path) as resumed:
        resumed.until_served()
        assert resumed.stop() == 130, resumed.output


def test_what_cannot_be_forked_is_refused_before_anything_is_written(
    synchronous: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, before = str(synchronous), sorted(synchronous.parent.iterdir())

    def refused(*arguments: str) -> str:
        assert main(["fork", run, *arguments]) == 2
        return capsys.readouterr().err

    named = ("--run.name", "new", "--train.num_steps", "20")
    assert "has no version 8 to fork at: its steps made the versions 1 to 7" in refused("--at", "8", *named)
    assert "has no version 0 to fork at" in refused("--at", "0", *named)
    assert "exists; --resume" in refused("--at", "3", "--run.name", "tiny")
    assert "name it with --run.name NAME" in refused("--at", "3")
    assert "leaves no step after version 7" in refused("--at", "7", "--run.name", "new")
    assert "sampling.group_size = 8 differs" in refused("--at", "3", *named, "--sampling.group_size", "8")
    assert "run.seed = 9 differs" in refused("--at", "3", *named, "--run.seed", "9")
    assert 'unknown key "train.lrr"' in refused("--at", "3", *named, "--train.lrr", "1")
    kl = refused("--at", "3", *named, "--objective.kl_coefficient", "0.1")
    assert f'without a KL term; try it with "freerun replay {run} --from 1 --set"' in kl
    assert "a critic learns from version 0 on" in refused("--at", "3", *named, "--objective.advantage", "gae")
    assert "nosuch" in refused("--at", "3", *named, "--reward.grader", "nosuch")
    assert "engine.cache_tokens" in refused("--at", "3", *named, "--sampling.max_completion_tokens", "4000")
    assert sorted(synchronous.parent.iterdir()) == before
