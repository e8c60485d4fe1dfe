"""`freerun replay --group` on real asynchronous runs: the recorded tokens, under the recorded versions."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from calling_models import make_calling_model, make_calling_run
from tiny_runs import Run, make_run

from freerun.cli.main import main
from freerun.events.reader import RunReader
from freerun.events.table import checksum
from freerun.replay.group import late_siblings, plan_groups
from freerun.session.run_directory import RunDirectory
from freerun.types import decoder_for, encode

ASYNCHRONOUS = ("--buffer.max_staleness", "3", "--train.num_threads", "1", "--eval.every_steps", "100")
ARRAY: msgspec.msgpack.Decoder[np.ndarray] = decoder_for(np.ndarray)
FREQUENT = (
    "--sampling.max_completion_tokens", "40", "--engine.cache_tokens", "2000", "--train.num_minibatches", "1",
    "--checkpoint.every_steps", "10", "--checkpoint.keep_optimizer", "true",
)  # fmt: skip
"""Long completions and short steps: many loads interrupt many sequences."""
KEPT = ("--engine.kv_on_load", "keep", "--engine.num_slots", "64", "--engine.cache_tokens", "4000")
"""With a slot for every sample none begins after a load with the older cache of its siblings."""
NUM_INTERRUPTS = 100
CHUNK = 16
"""Steps to train before the interrupts are counted again: timing decides how many there are."""
KINDS = {
    "ppo with critic and KL": ("--objective.preset", "ppo", "--objective.kl_coefficient", "0.05"),
    "m2po, kept caches": ("--objective.preset", "m2po", *KEPT),
    "draining, sharper": (
        "--engine.kv_on_load", "drain", "--sampling.temperature", "0.7", "--sampling.top_p", "0.9",
        "--sampling.top_k", "20",
    ),
    "lora after SFT": ("--lora.rank", "4", "--sft.num_steps", "6", "--sft.batch_size", "8"),
    "two ranks and two engines": (  # few slots and large batches: else the engines are always done before a load
        "--train.num_ranks", "2", "--engine.num_workers", "2", "--engine.num_slots", "4",
        "--train.prompts_per_step", "12",
    ),
    "few slots": ("--engine.num_slots", "6", "--engine.cache_tokens", "180"),
    "dapo": ("--objective.preset", "dapo"),
    "dropping what is too old": ("--buffer.policy", "drop", "--buffer.max_staleness", "1"),
}  # fmt: skip


def train(directory: Path, *options: str) -> Path:
    run = Run(make_run(directory), *ASYNCHRONOUS, *options)
    assert run.wait(240) == 0, run.output
    return run.reader_path


def num_interrupts(run: Path) -> int:
    """How often a completion that was trained on continued under another version."""
    with RunReader(run) as reader:
        rows = [row for step in reader.steps() for row in reader.trajectories(step.version)]
    return sum(len({span.version for span in row.spans if span.version is not None}) - 1 for row in rows)


def train_until_interrupted(directory: Path, *options: str) -> tuple[Path, int]:
    """The run, resumed until it has enough interrupts, and its number of steps."""
    path, run, num_steps = make_run(directory), directory, 0
    while num_steps == 0 or num_interrupts(run) < NUM_INTERRUPTS:
        assert num_steps < 20 * CHUNK, "interrupts are rare"
        num_steps += CHUNK
        resume = ["--resume"] if num_steps > CHUNK else []
        started = Run(path, *ASYNCHRONOUS, *FREQUENT, *options, "--train.num_steps", str(num_steps), *resume)
        assert started.wait(240) == 0, started.output
        run = started.reader_path
    return run, num_steps


@pytest.mark.slow
def test_after_a_hundred_interrupts_every_version_and_every_token_is_the_recorded_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*ASYNCHRONOUS, *FREQUENT, "--train.prompts_per_step", "10", "--train.num_steps", "50")
    first = Run(make_run(tmp_path), *options)
    first.until_saved(20)
    first.kill()
    second = Run(tmp_path / "tiny.toml", *options, "--resume")
    assert second.wait(240) == 0, second.output
    run = second.reader_path
    assert num_interrupts(run) >= NUM_INTERRUPTS
    assert main(["replay", str(run)]) == 0
    assert "50 of 50 versions have the recorded checksum" in capsys.readouterr().out
    assert main(["replay", str(run), "--group", "all"]) == 0
    output = capsys.readouterr().out
    assert f"sampling 500 groups of {run} again" in output
    assert "2000 of 2000 completions have the recorded tokens" in output
    assert largest_difference(output) < 1e-5


def largest_difference(output: str) -> float:
    found = re.search(r"the others differ by at most (\S+)", output)
    return float(found[1]) if found else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_every_kind_are_trained_and_sampled_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    if KINDS[kind][:2] == ("--engine.kv_on_load", "drain"):  # has no interrupts
        num_steps = 6
        run = train(tmp_path, *KINDS[kind], "--train.num_steps", "6")
        assert num_interrupts(run) == 0
    else:
        run, num_steps = train_until_interrupted(tmp_path, *KINDS[kind], "--checkpoint.keep", "1")
    assert main(["replay", str(run)]) == 0
    output = capsys.readouterr().out
    assert f"{num_steps} of {num_steps} versions have the recorded checksum" in output, output
    assert ("and 6 steps of SFT" in output) == ("SFT" in kind)
    ordinals = sure_groups(run)
    assert main(["replay", str(run), "--group", ",".join(map(str, ordinals))]) == 0
    output = capsys.readouterr().out
    assert f"{4 * len(ordinals)} of {4 * len(ordinals)} completions have the recorded tokens" in output
    assert largest_difference(output) < 1e-5


def sure_groups(run: Path) -> list[int]:
    """Those whose caches are known: with kept ones a late sample may have copied an older cache of its prompt."""
    plan = plan_groups(RunDirectory(run), [])
    kept = [part for part in plan.parts if part.recipe.engine.kv_on_load == "keep"]
    late = late_siblings([call for part in kept for call in part.calls])
    ordinals = {call.ordinal for call in plan.calls}
    assert len(late) < len(ordinals) / 4
    return sorted(ordinals - late)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose second session samples, keeps caches and grades in another way."""
    directory = tmp_path_factory.mktemp("changed")
    options = ("--checkpoint.keep_optimizer", "true", "--sampling.temperature", "0.7")
    train(directory, *options, "--train.num_steps", "4")
    sampling = ("--sampling.temperature", "1.3", "--sampling.max_completion_tokens", "40")
    others = (*KEPT, "--reward.grader", "number", "--train.num_steps", "10")
    resumed = Run(directory / "tiny.toml", *ASYNCHRONOUS, *sampling, *others, "--resume")
    assert resumed.wait(240) == 0, resumed.output
    return resumed.reader_path


@pytest.mark.slow
def test_after_a_resume_each_group_is_sampled_again_with_the_settings_of_its_session(
    changed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_groups(RunDirectory(changed), [])
    assert [part.recipe.sampling.temperature for part in plan.parts] == [0.7, 1.3]
    assert [part.recipe.engine.kv_on_load for part in plan.parts] == ["recompute", "keep"]
    ordinals = sure_groups(changed)
    assert main(["replay", str(changed), "--group", ",".join(map(str, ordinals))]) == 0
    output = capsys.readouterr().out
    assert f"{4 * len(ordinals)} of {4 * len(ordinals)} completions have the recorded tokens" in output


@pytest.mark.slow
def test_after_a_resume_each_group_is_graded_again_by_the_grader_of_its_session(
    changed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["regrade", str(changed)]) == 0
    assert capsys.readouterr().out == "0 of 120 rewards change\n"


@pytest.mark.slow
def test_a_run_on_a_mixture_is_trained_and_sampled_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run(tmp_path)
    for name, remainder in (("even", 0), ("odd", 1)):
        pairs = [(a, b) for a in range(2, 14) for b in range(2, 14) if (a + b) % 2 == remainder]
        rows = [{"question": f"^{a},{b}>", "answer": "1"} for a, b in pairs]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = f'[data]\ntask = "file"\npath = "{tmp_path}/{name}.jsonl"\ntemplate = "{{question}}"\n'
        (tmp_path / f"{name}.toml").write_text(settings)
    mixed = f'mixture = ["{tmp_path}/even.toml", "{tmp_path}/odd.toml"]'
    path.write_text(path.read_text().replace('task = "euclid"', mixed))
    run = Run(path, *ASYNCHRONOUS, "--train.num_steps", "6")
    assert run.wait(240) == 0, run.output
    assert main(["replay", str(run.reader_path)]) == 0
    assert "6 of 6 versions have the recorded checksum" in capsys.readouterr().out
    assert main(["replay", str(run.reader_path), "--group", "all"]) == 0
    assert "72 of 72 completions have the recorded tokens" in capsys.readouterr().out


@pytest.mark.slow
def test_the_calls_of_sessions_are_sampled_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_calling_model(tmp_path / "calling")
    run = Run(
        make_calling_run(tmp_path, model),
        "--rollout.tools=tests.support.sum_tools:add",
        "--train.num_steps=4",
        "--train.num_threads=1",
    )
    assert run.wait(240) == 0, run.output
    assert main(["replay", str(run.reader_path)]) == 0
    assert "4 of 4 versions have the recorded checksum" in capsys.readouterr().out
    assert main(["replay", str(run.reader_path), "--group", "all"]) == 0
    output = capsys.readouterr().out
    found = re.search(r"(\d+) of (\d+) calls have the recorded tokens", output)
    assert found is not None, output
    assert found[1] == found[2]


@pytest.mark.slow
def test_a_changed_token_is_named_with_its_sample_and_how_close_the_call_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, "--train.num_steps", "3", "--checkpoint.every_steps", "2")
    with closing(sqlite3.connect(run / "store.sqlite")) as db:
        db.row_factory = sqlite3.Row
        row = dict(db.execute("SELECT * FROM trajectories WHERE sample = 2 ORDER BY rowid DESC").fetchone())
        tokens = ARRAY.decode(row["token_ids"]).copy()
        tokens[1] += 1 if tokens[1] < 8 else -1
        row["token_ids"] = encode(tokens)
        row["checksum"] = checksum(row)
        key = "ordinal = :ordinal AND sample = 2"
        db.execute(f"UPDATE trajectories SET token_ids = :token_ids, checksum = :checksum WHERE {key}", row)
        db.commit()
    assert main(["replay", str(run), "--group", str(row["ordinal"])]) == 1
    output = capsys.readouterr().out
    assert "3 of 4 completions have the recorded tokens" in output
    assert re.search(
        rf"group {row['ordinal']} sample 2: token 1 \(version \d\) is '.+' with probability [\d.e-]+, "
        r"recorded was '.+' with [\d.e-]+; the random number 0\.\d+ missed it by [\d.e-]+",
        output,
    ), output
