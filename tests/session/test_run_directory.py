"""The run directory: one process at a time, refusals without side effects, closed to other users."""

import multiprocessing
import os
import re
import shutil
import sqlite3
import stat
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from recorded_events import a_start, make_step, write
from small_checkpoints import save
from tiny_runs import Run, make_run, recipe_of

from freerun.cli.main import main
from freerun.controller.checkpoint import drop_optimizers, read_checkpoint
from freerun.errors import CheckpointError, ConfigError
from freerun.events.reader import RunReader
from freerun.events.schema import StoreError
from freerun.events.store import Store
from freerun.session.run_directory import RunDirectory, open_run

NUM_ROUNDS = 60


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def refuse(path: Path, *overrides: str, resume: bool, match: str) -> None:
    with (
        pytest.raises((ConfigError, CheckpointError, StoreError), match=match),
        open_run(recipe_of(path, *overrides), resume=resume),
    ):
        pass


def start_over_and_over(path: str, barrier: Barrier, results: "Queue[tuple[int, str, bool]]") -> None:
    """Start the run of each round at the same moment as the others; say what came of it."""
    for number in range(NUM_ROUNDS):
        recipe = recipe_of(Path(path), "--run.name", f"run-{number}")
        barrier.wait()
        try:
            with open_run(recipe, resume=False) as (run, _):
                barrier.wait()  # everybody else has been refused by now
                is_whole = run.config.is_file() and (run.model / "tokenizer.json").is_file()
                results.put((number, "", is_whole))
        except Exception as error:  # noqa: BLE001 - the edge of a process: the test looks at it
            barrier.wait()
            results.put((number, f"{type(error).__name__}: {error}", True))
        barrier.wait()


def test_of_two_starts_at_once_exactly_one_wins_and_loses_nothing(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    for number in range(0, NUM_ROUNDS, 2):  # every other name is that of a start that failed and may be cleared
        with open_run(recipe_of(path, "--run.name", f"run-{number}"), resume=False):
            pass
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(2, timeout=120), spawn.Queue()
    pair = [
        spawn.Process(target=start_over_and_over, args=(str(path), barrier, results), daemon=True)
        for _ in range(2)
    ]
    for process in pair:
        process.start()
    told = [results.get(timeout=120) for _ in range(2 * NUM_ROUNDS)]
    for process in pair:
        process.join()
    for number in range(NUM_ROUNDS):
        errors = sorted(error for told_number, error, _ in told if told_number == number)
        assert errors[0] == ""
        assert "is in use by" in errors[1]
        assert errors[1].startswith("ConfigError: config: the run ")
    assert all(is_whole for _, _, is_whole in told)


def test_resuming_a_run_that_is_alive_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with open_run(recipe_of(path), resume=False) as (run, _):
        save(run.checkpoints, 6)
        (run.checkpoints / ".step-9.writing").mkdir()
        (run.checkpoints / ".step-9.writing" / "half").write_text("of a file")
        (run.checkpoints / "step-12").mkdir()
        (run.checkpoints / "step-12" / "state.msgpack").write_text("damaged")
        before = contents(run.path)
        in_use = f"is in use by process {os.getpid()}; wait for it or stop it"
        refuse(path, "--train.lr", "0.5", resume=True, match=in_use)
        assert contents(run.path) == before


def test_starting_a_run_that_is_alive_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with open_run(recipe_of(path), resume=False) as (run, _):
        before = contents(run.path)
        refuse(path, resume=False, match="is in use by")
        assert contents(run.path) == before
    with open_run(recipe_of(path), resume=False):  # it never made a step, so its name is free
        pass


def test_a_refused_resume_leaves_checkpoints_and_config_as_they_are(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with open_run(recipe_of(path), resume=False) as (run, _):
        save(run.checkpoints, 3)
        (run.checkpoints / "step-12").mkdir()
        (run.checkpoints / "step-12" / "state.msgpack").write_text("damaged")
    before = contents(run.path)
    refuse(path, "--run.seed", "99", resume=True, match="run.seed = 99 differs")
    refuse(path, "--objective.kl_coefficient", "0.1", resume=True, match="needs the policy of version 0")
    assert contents(run.path) == before


def test_a_run_without_its_optimizer_is_not_resumed_and_says_how_to_go_on(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with open_run(recipe_of(path), resume=False) as (run, _):
        save(run.checkpoints, 3)
        drop_optimizers(run.checkpoints)
    refuse(path, resume=True, match=r"keep_optimizer = false.*model.path = .*step-3/model")


@pytest.mark.slow
def test_a_finished_run_says_how_much_disk_it_takes_and_drops_its_optimizer_on_request(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    finished = Run(path, "--train.num_steps", "1", "--checkpoint.keep_optimizer", "false")
    assert finished.wait() == 0, finished.output
    run = tmp_path / "runs" / "tiny"
    assert re.search(rf"^disk       \d+\.\d MB in {re.escape(str(run))}$", finished.output, re.MULTILINE)
    checkpoint = read_checkpoint(run / "checkpoints" / "step-1")
    assert not checkpoint.has_optimizer
    assert not checkpoint.optimizer_file.exists()
    refuse(path, "--train.num_steps", "2", resume=True, match="its optimizer was dropped")


def make_resumable(path: Path, *, num_recorded: int) -> RunDirectory:
    """A run with a checkpoint of version 3 and a store of so many steps."""
    with open_run(recipe_of(path), resume=False) as (run, _):
        save(run.checkpoints, 3)
        write(run.path, a_start(), *(make_step(version + 1) for version in range(num_recorded)))
    return run


def test_a_store_that_was_lost_or_lacks_steps_of_the_checkpoint_is_not_silently_replaced(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    run = make_resumable(path, num_recorded=4)
    with open_run(recipe_of(path), resume=True) as (_, checkpoint):
        assert checkpoint is not None
    (run.path / "store.sqlite").unlink()
    before = contents(run.path)
    refuse(path, resume=True, match=r"holds 0 of the 3 steps that made .*step-3: .*model.path = .*step-3/model")
    assert contents(run.path) == before
    write(run.path, a_start(), make_step(1), make_step(2))
    refuse(path, resume=True, match="holds 2 of the 3 steps")


def test_a_deleted_write_ahead_log_is_noticed_on_resume(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with open_run(recipe_of(path), resume=False) as (run, _), Store(run.path) as store:
        store(a_start())
        store.flush()
        with RunReader(run.path) as reader:
            reader.steps()  # leaves nothing locked
        # A reader of an old state: what follows stays in the log.
        connection = sqlite3.connect(run.path / "store.sqlite", isolation_level=None)
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM events").fetchone()
        for version in (1, 2, 3):
            store(make_step(version))
        store.flush()
        save(run.checkpoints, 3)
        shutil.copytree(run.path, tmp_path / "runs" / "copy")
        connection.close()
    (tmp_path / "runs" / "copy" / "store.sqlite-wal").unlink()
    (tmp_path / "runs" / "copy" / "store.sqlite-shm").unlink()
    refuse(path, "--run.name", "copy", resume=True, match="holds 0 of the 3 steps")


def test_a_damaged_store_is_not_resumed_on(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    run = make_resumable(path, num_recorded=4)
    file = run.path / "store.sqlite"
    content = file.read_bytes()
    assert content.count(b"7*8=") > 0
    file.write_bytes(content.replace(b"7*8=", b"7*9=", 1))
    before = contents(run.path)
    refuse(path, resume=True, match=r"store\.sqlite is damaged: a row does not match its checksum")
    assert contents(run.path) == before


def test_a_directory_of_something_else_gets_no_lock_file(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    before = contents(tmp_path / "model")
    refuse(path, "--run.directory", str(tmp_path), "--run.name", "model", resume=False, match="is not a run")
    assert contents(tmp_path / "model") == before


def test_a_start_cut_off_before_its_config_does_not_keep_the_name(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with open_run(recipe_of(path), resume=False) as (run, _):
        pass
    shutil.rmtree(run.model)
    run.config.unlink()
    assert [file.name for file in run.path.iterdir()] == ["lock"]
    with open_run(recipe_of(path), resume=False):
        assert run.config.is_file()


def test_a_run_directory_is_closed_to_other_users_and_its_parent_keeps_its_mode(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    (tmp_path / "runs").mkdir(mode=0o755)
    with open_run(recipe_of(path), resume=False) as (run, _):
        assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == 0o755


@pytest.mark.parametrize("directory", ["a-file", "a-file/below"])
def test_a_run_directory_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], directory: str
) -> None:
    path = make_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("a-file").write_text("")
    capsys.readouterr()
    assert main(["train", str(path), "--run.directory", directory]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert 'the run directory "' in line
    assert "cannot be used (" in line
    assert "choose another run.directory or run.name" in line


@pytest.mark.parametrize("name", ["lock", "log.txt", ".config.toml.writing"])
def test_no_link_in_a_run_directory_leads_to_a_file_that_is_written(tmp_path: Path, name: str) -> None:
    path = make_run(tmp_path)
    with open_run(recipe_of(path), resume=False) as (run, _):
        pass
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(precious)
    main(["train", str(path), "--resume", "--train.num_steps", "1"])
    assert precious.read_text() == "as it was"


def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_run(tmp_path)
    with open_run(recipe_of(path), resume=False) as (run, _):
        pass
    (run.path / "log.txt").mkdir()
    assert main(["train", str(path), "--resume"]) == 2
    assert f"{run.path}/log.txt: the log cannot be opened (Is a directory)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_that_cannot_even_be_begun_ends_the_run_with_its_reason_alone(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with open_run(recipe_of(path), resume=False) as (opened, _):
        (opened.path / "checkpoints").write_text("a file in the way")
    run = Run(path, "--resume", "--checkpoint.every_steps", "1")
    assert run.wait() == 1
    assert "failed: version 1 was not saved: " in run.output
    assert "never awaited" not in run.output
