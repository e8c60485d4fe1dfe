"""The run's store: real files, real threads, real deaths."""

import math
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fake_groups import a_group_of_sessions
from recorded_events import a_start, an_end, an_eval, an_eval_with_prompts, make_group, make_step, write

from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    EngineReport,
    GroupFinished,
)
from freerun.events.metrics import RunState
from freerun.events.reader import RunReader, list_runs
from freerun.events.schema import Rewound, StoreError
from freerun.events.store import Store
from freerun.types import Doing, EngineStats, Group, Reward, Span


def test_what_is_recorded_can_be_read_back(tmp_path: Path) -> None:
    group = make_group(7, oldest=1)
    write(tmp_path, a_start(), make_step(3, (group,), loss=0.25), an_eval(3), an_end())
    with RunReader(tmp_path) as reader:
        step = reader.last_step()
        assert step is not None
        assert (step.version, step.seconds, step.step_seconds, step.wait_seconds) == (3, 6.0, 1.5, 0.5)
        assert step.metrics == {"reward": 0.3, "loss": 0.25}
        assert step.staleness_counts == {0: 1, 2: 3}
        assert [(e.version, e.accuracy) for e in reader.evals()] == [(3, 0.5)]
        first, second = reader.trajectories(3)
        assert (first.ordinal, first.sample, first.key, first.prompt, first.answer) == (7, 0, "7*8", "7*8=", "56")
        assert (first.completion, first.finish_reason, first.is_correct, first.reward) == (
            " 56\n",
            "stop",
            True,
            5.0,
        )
        assert first.spans == (Span(1, 1), Span(2, 2))
        assert first.staleness == 1  # Trained at version 2, its oldest token is of version 1.
        np.testing.assert_array_equal(first.token_ids, group.trajectories[0].completion.token_ids)
        np.testing.assert_array_equal(first.logprobs, group.trajectories[0].completion.logprobs)
        np.testing.assert_array_equal(first.prompt_token_ids, np.arange(4))
        assert (second.sample, second.is_correct) == (1, False)


def test_sessions_in_several_sequences_are_read_back_as_they_were(tmp_path: Path) -> None:
    rated = Reward(1.5, True, turns=(0.5, 0.0, 1.0))
    sessions = a_group_of_sessions(7, 0)
    group = msgspec.structs.replace(
        sessions, trajectories=tuple(msgspec.structs.replace(t, reward=rated) for t in sessions.trajectories)
    )
    write(tmp_path, a_start(), make_step(3, (group,)), an_end())
    with RunReader(tmp_path) as reader:
        rows = reader.trajectories(3)
        assert [(row.sample, row.part) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert reader.trained_ordinals() == [7]
        for row, trajectory in zip(rows, group.trajectories, strict=True):
            assert row.spans == trajectory.completion.spans
            assert row.reward_turns == (0.5, 0.0, 1.0)
            assert row.staleness == 2 - trajectory.completion.oldest_version
            np.testing.assert_array_equal(row.token_ids, trajectory.completion.token_ids)
            np.testing.assert_array_equal(row.logprobs, trajectory.completion.logprobs)


def test_the_events_read_back_give_the_same_state(tmp_path: Path) -> None:
    report = EngineReport(seconds=3.0, worker="rollout-0", stats=EngineStats(num_tokens=80, num_steps=9))
    events: list[AnyEvent] = [a_start(), report, make_step(1), an_eval(1), make_step(2), an_end()]
    live, replayed = RunState(), RunState()
    for event in events:
        live(event)
    write(tmp_path, *events)
    with RunReader(tmp_path) as reader:
        for recorded in reader.events():
            assert not isinstance(recorded, Rewound)
            replayed(recorded)
    assert replayed.rewards == live.rewards
    assert replayed.num_trained == live.num_trained
    assert replayed.engine_total("num_tokens") == 80
    assert replayed.eta_seconds(5.0) == live.eta_seconds(5.0)


def test_what_is_recorded_is_seen_without_a_flush(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for version in range(1, 101):
            store.record(make_step(version, ()))
        with RunReader(tmp_path) as reader:
            deadline = time.monotonic() + 60
            while len(reader.steps()) < 100 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert len(reader.steps()) == 100


def test_several_threads_may_read_while_the_run_writes(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(20):
                with RunReader(tmp_path) as reader:
                    assert all(reader.trajectories(step.version) for step in reader.steps())
        except BaseException as error:  # noqa: BLE001 - the edge of a thread: the test fails with it
            failures.append(error)

    with Store(tmp_path) as store:
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for version in range(1, 31):
            store(make_step(version))
            store.flush(10.0)
        for thread in threads:
            thread.join()
    assert failures == []


def test_rewind_forgets_the_steps_after_the_checkpoint_and_says_so(tmp_path: Path) -> None:
    checkpoint = CheckpointSaved(seconds=4.5, version=2, directory="d")
    early, late = (GroupFinished(seconds=s, ordinal=1, outcome="filtered") for s in (4.0, 5.0))
    steps = [make_step(version) for version in (1, 2, 3, 4)]
    write(tmp_path, a_start(), *steps[:2], early, checkpoint, late, *steps[2:], an_eval(4), an_end())
    with Store(tmp_path) as store:
        assert store.rewind(2, seconds=4.2) == 2
        store(a_start(version=2))
        store(make_step(3))
    with RunReader(tmp_path) as reader:
        assert [step.version for step in reader.steps()] == [1, 2, 3]
        assert reader.trained_ordinals() == [2, 3, 4, 5, 6, 7]
        assert reader.trajectories(4) == []
        assert reader.evals() == []
        [rewound] = reader.events("rewound")
        assert isinstance(rewound, Rewound)
        assert (rewound.version, rewound.num_steps) == (2, 2)
        assert len(list(reader.events("checkpoint_saved"))) == 1
        assert [event.seconds for event in reader.events("group_finished")] == [4.0]
        assert len(list(reader.events("run_finished"))) == 1
        assert len(list(reader.events("step_finished"))) == 3


def test_rewinding_a_store_that_is_not_ahead_leaves_no_trace(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store(make_step(1))
        assert store.rewind(1) == 0
    with RunReader(tmp_path) as reader:
        assert list(reader.events("rewound")) == []


def test_prompts_and_completions_of_an_evaluation_are_kept_replaced_and_rewound_with_it(tmp_path: Path) -> None:
    write(tmp_path, a_start(), an_eval_with_prompts(0), an_eval_with_prompts(4), an_eval_with_prompts(4, 2))
    with RunReader(tmp_path) as reader:
        assert [prompt.num_correct for prompt in reader.eval_prompts(4)] == [2, 0]
        [_, failed] = reader.eval_prompts(0)
        assert math.isnan(failed.mean_reward)
        assert failed.failure == "no?"
        completions = reader.eval_completions(4)
        wanted = an_eval_with_prompts(4).groups[0]
        assert [row.completion for row in completions] == [t.completion.text for t in wanted]
        assert [row.token_ids.tolist() for row in completions] == [t.completion.token_ids.tolist() for t in wanted]
        assert all(not e.prompts and not e.groups for e in reader.events("eval_finished"))  # type: ignore[union-attr]
    with Store(tmp_path) as store:
        store.rewind(2)
    with RunReader(tmp_path) as reader:
        assert [e.version for e in reader.evals()] == [0]
        assert (len(reader.eval_prompts(0)), reader.eval_prompts(4), reader.eval_completions(4)) == (2, [], [])


def test_a_trajectory_trained_twice_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store(make_step(1, (make_group(5),)))
    store(make_step(2, (make_group(5),)))
    with pytest.raises(StoreError, match="trained twice"):
        store.flush()
    with pytest.raises(StoreError, match="trained twice"):
        store.close()


def test_a_full_disk_is_kept_and_raised_by_check_and_flush_but_never_by_recording(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store(a_start())
    store.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        store(make_step(1, (make_group(1, text="x" * 1_000_000),)))
        with pytest.raises(StoreError, match="no longer written"):
            store.flush()
        store(make_step(2))
        with pytest.raises(StoreError, match="free disk space"):
            store.check()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(StoreError):
        store.close()
    with RunReader(tmp_path) as reader:
        assert reader.steps() == []
        assert len(list(reader.events())) == 1


def test_text_that_is_not_unicode_does_not_stop_the_writer(tmp_path: Path) -> None:
    failed = GroupFinished(seconds=1.0, ordinal=1, outcome="failed", reason="bad \ud800 byte")
    grading = Activity(seconds=1.0, worker="grader-0", doing=Doing("grading", "row \ud800"))
    write(tmp_path, failed, grading, make_step(1, (make_group(1, text="a\ud800\x00b"),)))
    with RunReader(tmp_path) as reader:
        [activity] = reader.events("activity")
        assert isinstance(activity, Activity)
        assert activity.doing.what == "row ?"
        assert reader.trajectories(1)[0].completion == "a?\x00b"
        [event] = reader.events("group_finished")
        assert isinstance(event, GroupFinished)
        assert event.reason == "bad ? byte"


def test_not_a_number_survives_as_such(tmp_path: Path) -> None:
    write(tmp_path, make_step(1, (), reward=math.nan, loss=math.inf))
    with RunReader(tmp_path) as reader:
        step = reader.last_step()
        assert step is not None
        assert math.isnan(step.metrics["reward"])
        assert step.metrics["loss"] == math.inf
        assert reader.status().reward is None


def test_a_finished_store_is_one_file(tmp_path: Path) -> None:
    write(tmp_path, a_start(), make_step(1), an_end())
    with RunReader(tmp_path) as reader:
        assert reader.status().state == "finished"
    assert [file.name for file in tmp_path.iterdir()] == ["store.sqlite"]


def test_a_store_of_another_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE other (x)")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = file.read_bytes()
    for opener in (Store, RunReader):
        with pytest.raises(StoreError, match="schema version 99, this freerun knows 8"):
            opener(tmp_path)
    assert file.read_bytes() == before


def test_the_parts_of_a_reward_are_kept_with_its_trajectory(tmp_path: Path) -> None:
    [first, second] = make_group(1).trajectories
    summed = msgspec.structs.replace(first, reward=Reward(6.0, True, {"number": 5.0, "format": 5.0}))
    group = Group(ordinal=1, start_version=0, trajectories=(summed, second))
    write(tmp_path, make_step(1, (group,)))
    with RunReader(tmp_path) as reader:
        assert [t.reward_parts for t in reader.trajectories(1)] == [{"number": 5.0, "format": 5.0}, {}]


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"garbage" * 1000)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(tmp_path)
    with pytest.raises(StoreError, match="cannot be read"):
        RunReader(tmp_path)


def test_a_missing_store_says_which_file_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere/store\.sqlite does not exist"):
        RunReader(tmp_path / "nowhere")


def start_in_another_process(directory: Path) -> subprocess.Popen[str]:
    """A run that records a start and one step, says so, and then hangs."""
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
        "import recorded_events as t; from freerun.events.store import Store\n"
        "store = Store(Path(sys.argv[1])); store(t.a_start()); store(t.make_step(1)); store.flush()\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    arguments = [sys.executable, "-c", script, str(directory), str(Path(__file__).parents[1] / "support")]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdout.close()
    return process


def test_a_killed_run_is_listed_as_crashed_keeps_its_steps_and_can_be_resumed(tmp_path: Path) -> None:
    directory = tmp_path / "killed"
    process = start_in_another_process(directory)
    try:
        [run] = list_runs(tmp_path)
        assert (run.name, run.state, run.version, run.num_steps, run.reward) == ("killed", "running", 1, 60, 0.1)
        with pytest.raises(StoreError, match=f"being written by process {process.pid}"):
            Store(directory)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    [run] = list_runs(tmp_path)
    assert (run.state, run.version, run.reason) == ("crashed", 1, f"process {process.pid} is gone")
    write(directory, a_start(version=1), make_step(2), an_end())
    [run] = list_runs(tmp_path)
    assert (run.state, run.version) == ("finished", 2)


def test_a_reused_process_id_does_not_pass_for_the_run(tmp_path: Path) -> None:
    write(tmp_path / "r", a_start())
    connection = sqlite3.connect(tmp_path / "r" / "store.sqlite")
    connection.execute("UPDATE sessions SET state = 'running', pid_created = pid_created - 100")
    connection.commit()
    connection.close()
    assert [run.state for run in list_runs(tmp_path)] == ["crashed"]


def test_runs_are_listed_newest_first_and_damage_is_not_an_exception(tmp_path: Path) -> None:
    write(tmp_path / "old", a_start(), make_step(1), an_eval(1, 0.25), an_end("interrupted"))
    write(tmp_path / "silent", a_start())
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "store.sqlite").write_bytes(b"SQLite format 3\x00" + b"\xff" * 5000)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "store.sqlite").touch()
    (tmp_path / "not-a-run").mkdir()
    write(tmp_path / ".being-made.123.tmp", a_start())
    runs = list_runs(tmp_path)
    assert {run.name: run.state for run in runs} == {
        "old": "interrupted", "silent": "failed", "damaged": "crashed", "empty": "crashed",
    }  # fmt: skip
    assert [run.updated for run in runs] == sorted((run.updated for run in runs), reverse=True)
    assert next(run.accuracy for run in runs if run.name == "old") == 0.25


def test_a_store_cut_short_is_listed_as_crashed(tmp_path: Path) -> None:
    write(tmp_path / "cut", a_start(), *(make_step(version) for version in range(1, 40)), an_end())
    file = tmp_path / "cut" / "store.sqlite"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 3])
    assert [run.state for run in list_runs(tmp_path)] == ["crashed"]


def test_an_empty_or_missing_directory_holds_no_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    assert list_runs(tmp_path / "nowhere") == []


def test_what_is_flushed_survives_a_loss_of_power_though_somebody_is_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync
    with Store(tmp_path) as store:
        store.flush()
        reading = sqlite3.connect(store.file)
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM steps").fetchone()
        store.record(make_step(1))

        def noted_fsync(fd: int) -> None:
            synced.append(os.fstat(fd).st_ino)
            fsync(fd)

        monkeypatch.setattr(os, "fsync", noted_fsync)
        store.flush()
        assert store.file.with_name("store.sqlite-wal").stat().st_ino in synced
        reading.close()
        store.flush()


def test_a_log_that_cannot_be_synced_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    store = Store(tmp_path)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="Input/output error; free disk space"):
        store.flush()
    with pytest.raises(StoreError):
        store.close()
