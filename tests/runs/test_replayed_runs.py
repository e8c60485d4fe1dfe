"""`freerun replay` on real asynchronous runs: the same bits; planted damage is named by its first bad version."""

import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import Run, make_run

from freerun.cli.main import main
from freerun.config.objective import PRESETS
from freerun.events.batches import recorded_checksums
from freerun.events.reader import RunReader
from freerun.events.table import checksum
from freerun.types import decoder_for, encode

ASYNCHRONOUS = ("--buffer.max_staleness", "3", "--train.num_threads", "1", "--eval.every_steps", "100")
ARRAY: msgspec.msgpack.Decoder[np.ndarray] = decoder_for(np.ndarray)


def train(directory: Path, *options: str) -> Path:
    run = Run(make_run(directory), *ASYNCHRONOUS, *options)
    assert run.wait(240) == 0, run.output
    return run.reader_path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps; not to be changed."""
    return train(tmp_path_factory.mktemp("small"), "--train.num_steps", "4", "--checkpoint.every_steps", "2")


def test_an_asynchronous_run_replays_bit_for_bit(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(run), "--save", str(tmp_path / "saved")]) == 0
    assert "4 of 4 versions have the recorded checksum" in capsys.readouterr().out
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    trained = load_file(run / "checkpoints" / "step-4" / "model" / "model.safetensors")
    assert saved.keys() == trained.keys()
    assert all(torch.equal(saved[name], trained[name]) for name in trained)
    links = [os.readlink(link.path) for link in os.scandir("/proc/self/fd") if link.is_symlink()]
    assert not [link for link in links if "freerun-replay" in link], "the buffers of the weights are released"


def test_a_what_if_of_the_last_step_leaves_a_run_with_its_origin(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("--set", "objective.clip_high=0.05", "--set", "train.lr=0.001")
    assert main(["replay", str(run), "--from", "4", *settings]) == 0
    made = run.with_name(f"{run.name}-what-if-1")
    assert f"version 4 is in {made}" in capsys.readouterr().out
    assert main(["show", str(made)]) == 0
    assert f"what if of {run} from step 4 on, with objective.clip_high = 0.05" in capsys.readouterr().out
    with RunReader(run) as recorded, RunReader(made) as tried:
        ours, theirs = recorded_checksums(tried), recorded_checksums(recorded)
    assert [ours[version] == theirs[version] for version in range(5)] == [True] * 4 + [False]


def test_a_group_is_sampled_again_with_the_recorded_tokens(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunReader(run) as reader:
        ordinal = reader.trained_ordinals()[-1]
    assert main(["replay", str(run), "--group", str(ordinal)]) == 0
    output = capsys.readouterr().out
    assert f"sampling group {ordinal} of {run} again under version" in output
    assert "4 of 4 completions have the recorded tokens" in output


def test_a_group_that_cannot_be_sampled_again_is_refused_with_the_reason(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, reason in (
        (("--group", "12345"), "has not trained on a group 12345"),
        (("--group=-2",), "group -2 is a held-out prompt"),
        (("--group", "x"), "invalid ordinals value"),
        (("--group", "1", "--until", "2"), "--until chooses steps to train, --group a group to sample"),
        (("--group", "1", "--set", "train.lr=1"), "--set trains with other settings, --group samples"),
    ):
        assert main(["replay", str(run), *options]) == 2
        assert reason in capsys.readouterr().err


def test_the_grader_of_a_run_gives_the_recorded_rewards_again_and_another_one_does_not(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["regrade", str(run)]) == 0
    assert capsys.readouterr().out == "0 of 48 rewards change\n"
    assert main(["regrade", str(run), "--grader", "number"]) == 0
    output = capsys.readouterr().out
    assert "step 1: 12 of 12 rewards change, mean" in output
    assert output.endswith("48 of 48 rewards change\n")


def test_steps_that_were_not_recorded_cannot_be_replayed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run), "--from", "3", "--until", "9"]) == 2
    assert "--from 3 --until 9 is no range of the recorded steps 1 to 4" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_with_any_preset_replays_bit_for_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], preset: str
) -> None:
    path = make_run(tmp_path)
    path.write_text(path.read_text().replace('advantage = "grpo"', f'preset = "{preset}"'))
    run = Run(path, *ASYNCHRONOUS, "--train.num_steps", "3")
    assert run.wait(240) == 0, run.output
    with run.reader() as reader:
        checksums = recorded_checksums(reader)
    assert len(set(checksums.values())) == 4, "each step changes the weights"
    assert main(["replay", str(run.reader_path)]) == 0
    assert "3 of 3 versions have the recorded checksum" in capsys.readouterr().out


@pytest.mark.slow
def test_a_replay_from_another_model_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path, num_layers=1)
    shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    config = tmp_path / "copy" / "config.toml"
    config.write_text(config.read_text().replace(str(run.parents[1] / "model"), str(tmp_path / "model")))
    assert main(["replay", str(tmp_path / "copy")]) == 2
    assert "version 0 cannot be made again" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_was_killed_and_resumed_replays_from_its_start_and_from_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*ASYNCHRONOUS, "--train.num_steps", "9", "--checkpoint.keep_optimizer", "true")
    first = Run(make_run(tmp_path), *options)
    first.until_saved(3)
    first.kill()
    second = Run(tmp_path / "tiny.toml", *options, "--resume")
    assert second.wait(240) == 0, second.output
    assert main(["replay", str(second.reader_path)]) == 0
    assert "9 of 9 versions have the recorded checksum" in capsys.readouterr().out
    assert main(["replay", str(second.reader_path), "--from", "9"]) == 0
    output = capsys.readouterr().out
    assert "again from version 0" not in output
    assert re.search(r"version \d is the checkpoint", output)


@pytest.mark.slow
def test_a_run_that_was_resumed_with_other_settings_is_replayed_with_those_of_each_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, "--train.num_steps", "3", "--checkpoint.keep_optimizer", "true")
    changed = ("--train.lr", "0.003", "--objective.clip_high", "0.05", "--train.num_steps", "6")
    resumed = Run(tmp_path / "tiny.toml", *ASYNCHRONOUS, *changed, "--resume")
    assert resumed.wait(240) == 0, resumed.output
    for options in ((), ("--from", "4"), ("--from", "6")):
        assert main(["replay", str(run), *options]) == 0
        assert "versions have the recorded checksum" in capsys.readouterr().out
    config = run / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.003\n", "lr = 0.5\n"))
    assert main(["replay", str(run)]) == 0
    output = capsys.readouterr().out
    assert "config.toml has train.lr = 0.5, but the run had 0.003, which is used" in output
    assert "6 of 6 versions have the recorded checksum" in output


def change_row(run: Path, version: int, change: Callable[[dict[str, Any]], None]) -> int:
    """Damage a trajectory that has an advantage, so that its own checksum does not tell; returns its version."""
    with closing(sqlite3.connect(run / "store.sqlite")) as db:
        db.row_factory = sqlite3.Row
        which = "SELECT * FROM trajectories WHERE version >= ? AND abs(advantage) > 0.1 ORDER BY rowid LIMIT 1"
        row = dict(db.execute(which, (version,)).fetchone())
        change(row)
        row["checksum"] = checksum(row)
        names = ", ".join(f"{name} = :{name}" for name in row)
        key = "ordinal = :ordinal AND sample = :sample AND part = :part"
        db.execute(f"UPDATE trajectories SET {names} WHERE {key}", row)
        db.commit()
    return int(row["version"])


def change_setting(run: Path, before: str, after: str) -> None:
    """Of every session: rows of sessions change in a run's life, so they have no checksum that could tell."""
    with closing(sqlite3.connect(run / "store.sqlite")) as db:
        cursor = db.execute("UPDATE sessions SET settings = replace(settings, ?, ?)", (before, after))
        assert cursor.rowcount == 1
        db.commit()


def other_token(row: dict[str, Any]) -> None:
    tokens = ARRAY.decode(row["token_ids"]).copy()
    tokens[0] = tokens[0] - 1 if tokens[0] > 5 else tokens[0] + 1
    row["token_ids"] = encode(tokens)


def other_logprob_bit(row: dict[str, Any]) -> None:
    logprobs = ARRAY.decode(row["logprobs"]).copy()
    logprobs.view(np.int32)[0] ^= 1 << 8
    row["logprobs"] = encode(logprobs)


def other_reward(row: dict[str, Any]) -> None:
    row["reward"] += 0.25


@pytest.mark.slow
def test_planted_damage_is_named_by_its_first_bad_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, "--train.num_steps", "6")
    for after, change in ((2, other_token), (3, other_logprob_bit), (4, other_reward)):
        damaged = tmp_path / change.__name__
        shutil.copytree(run, damaged)
        version = change_row(damaged, after, change)
        assert main(["replay", str(damaged)]) == 1
        output = capsys.readouterr().out
        assert f"version {version} is the first that is not as recorded" in output, (change, output)
    change_setting(run, "lr = 0.01\n", "lr = 0.011\n")
    assert main(["replay", str(run), "--save", str(tmp_path / "saved")]) == 1
    assert "version 1 is the first that is not as recorded" in capsys.readouterr().out
    assert not (tmp_path / "saved").exists()
