"""What-ifs on real asynchronous runs: the recorded batches, other settings, a run directory of its own."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load_file
from tiny_runs import Run, make_run

from freerun.cli.main import main
from freerun.config.load import load_recipe
from freerun.controller.checkpoint import read_checkpoint
from freerun.dashboard.feeds import FEEDS, report_answers, request_key
from freerun.dashboard.source import Source
from freerun.events.batches import recorded_checksums
from freerun.events.reader import RunReader
from freerun.events.session_rows import recorded_sessions
from freerun.replay.retrainer import Retrainer
from freerun.replay.settings import RunSettings
from freerun.session.run_directory import RunDirectory
from freerun.types import Group, StepResult
from freerun.workers.messages import DIVERGED

pytestmark = pytest.mark.slow

ASYNCHRONOUS = (
    "--buffer.max_staleness", "3", "--train.num_threads", "1", "--eval.every_steps", "100",
    "--train.num_steps", "8",
)  # fmt: skip
TIMED = ("_seconds", "_per_second")
NOT_OF_THE_TRAINER = {"engine_trainer_kl", "slot_occupancy"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run(make_run(tmp_path_factory.mktemp("recorded")), *ASYNCHRONOUS)
    assert run.wait(240) == 0, run.output
    return run.reader_path


def what_if(run: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, Path]:
    """The output, and the new run."""
    before = set(run.parent.iterdir())
    assert main(["replay", str(run), *options]) == 0
    [made] = set(run.parent.iterdir()) - before
    return capsys.readouterr().out, made


def of_the_trainer(metrics: dict[str, float]) -> dict[str, float]:
    """Without times, what the controller adds, and the comparison with engines, which a what-if has not."""
    own = [name for name in metrics if not name.endswith(TIMED) and name not in NOT_OF_THE_TRAINER]
    return {name: metrics[name] for name in own}


def record(run: Path) -> tuple[list[Any], dict[int, str]]:
    with RunReader(run) as reader:
        reader.verify()
        return [(step.version, of_the_trainer(step.metrics)) for step in reader.steps()], recorded_checksums(
            reader
        )


@pytest.mark.parametrize("first", [1, 5])
def test_a_what_if_with_the_same_settings_is_the_replay(
    run: Path, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    output, made = what_if(run, "--set", "train.lr=0.01", "--from", str(first), capsys=capsys)
    assert "nothing changed" in output
    assert record(made) == record(run)
    with RunReader(run) as original, RunReader(made) as again:
        for version in range(1, 9):
            for row, other in zip(original.trajectories(version), again.trajectories(version), strict=True):
                assert (row.advantage, row.num_clipped) == (other.advantage, other.num_clipped)
                assert row.log_weights.tobytes() == other.log_weights.tobytes()


def test_other_settings_give_another_run_that_every_reader_understands(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("--set", "objective.clip_high=0.05", "--set", "train.lr=0.002", "--from", "4")
    output, made = what_if(run, *settings, capsys=capsys)
    assert "from step 4 on: objective.clip_high = 0.05 (was 0.2), train.lr = 0.002 (was 0.01)" in output
    assert "step 4: effective sample size " in output
    (steps, checksums), (recorded_steps, recorded) = record(made), record(run)
    assert [checksums[version] == recorded[version] for version in range(9)] == [True] * 4 + [False] * 5
    assert steps[:3] == recorded_steps[:3]
    assert steps[3] != recorded_steps[3]
    recipe = load_recipe(made / "config.toml", [])
    assert (recipe.run.name, recipe.train.lr, recipe.objective.clip_high) == (made.name, 0.002, 0.05)
    with RunReader(made) as reader:
        *_, session = recorded_sessions(reader)
        assert reader.status().state == "finished"
    assert session.start_version == 3
    assert session.origin.startswith(f"what if of {run} from step 4 on, with objective.clip_high = 0.05")
    state = read_checkpoint(made / "checkpoints" / "step-8").state
    with RunReader(made) as reader:
        trained = reader.trained_ordinals()
    assert sorted([*trained, *state.buffer.to_restart]) == list(range(state.cursor))
    for command in (["show", str(made)], ["runs", str(made.parent)], ["compare", str(run), str(made)]):
        assert main(command) == 0
    assert "what if of" in capsys.readouterr().out
    assert main(["replay", str(made)]) == 0
    assert "8 of 8 versions have the recorded checksum" in capsys.readouterr().out


def test_the_page_shows_a_what_if_as_a_run_and_beside_its_origin(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, made = what_if(run, "--set", "train.lr=0.002", "--from", "6", "--until", "7", capsys=capsys)
    source = Source(made)
    try:
        shown = as_a_browser_reads(report_answers(source))
        compared = as_a_browser_reads(FEEDS["compare"](source, {"runs": f"{run.name},{made.name}"}))
    finally:
        source.close()
    assert (shown["run"]["step"], shown["run"]["name"]) == (7, made.name)
    assert shown["settings"]["settings"]["train.lr"] == "0.002"
    assert request_key("batch", {"step": "7"}) in shown
    with RunReader(made) as reader:
        assert shown["run"]["held"]["num_trained"] == len(reader.trained_ordinals()) * 4
    assert len(compared["runs"]) == 2
    assert "train.lr" in json.dumps(compared["differences"])


def as_a_browser_reads(answered: object) -> dict[str, Any]:
    """JSON knows no NaN."""
    read: dict[str, Any] = json.loads(json.dumps(answered, allow_nan=False))
    return read


def test_after_a_resume_each_step_is_tried_and_recorded_with_the_settings_of_its_session(
    resumed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, made = what_if(resumed, "--from", "2", "--set", "objective.clip_high=0.05", capsys=capsys)
    with RunReader(made) as reader:
        settings = RunSettings.read(RunDirectory(made), reader)
        starts = [session.start_version for session in recorded_sessions(reader)]
    assert starts == [0, 1, 3]
    tried = [settings.of_step(step) for step in range(1, 7)]
    assert [recipe.train.lr for recipe in tried] == [0.01] * 3 + [0.003] * 3
    assert [recipe.objective.clip_high for recipe in tried] == [0.2] + [0.05] * 5
    assert (settings.config.train.lr, settings.config.objective.clip_high) == (0.003, 0.05)
    assert main(["replay", str(made)]) == 0
    assert "6 of 6 versions have the recorded checksum" in capsys.readouterr().out


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synchronous, so that fresh tokens are in every batch; from step 4 on with another learning rate."""
    path = make_run(tmp_path_factory.mktemp("resumed"))
    options = (*ASYNCHRONOUS, "--buffer.max_staleness", "0", "--checkpoint.keep_optimizer", "true")
    for changed in (["--train.num_steps", "3"], ["--train.num_steps", "6", "--train.lr", "0.003", "--resume"]):
        run = Run(path, *options, *changed)
        assert run.wait(240) == 0, run.output
    return run.reader_path


def test_one_that_diverges_ends_without_a_checkpoint_and_is_not_begun_again(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Retrainer.step

    async def step_to_3_diverges(self: Retrainer, groups: tuple[Group, ...]) -> tuple[StepResult, str]:
        result, checksum = await step(self, groups)
        told = {DIVERGED: 1.0} if result.version == 3 else {}
        return msgspec.structs.replace(result, metrics=result.metrics | told), checksum

    monkeypatch.setattr(Retrainer, "step", step_to_3_diverges)
    before = set(run.parent.iterdir())
    assert main(["replay", str(run), "--set", "train.lr=0.02"]) == 2
    [made] = set(run.parent.iterdir()) - before
    assert "training diverged: after step 3 the weights" in capsys.readouterr().err
    with RunReader(made) as reader:
        status = reader.status()
    assert status.state == "failed"
    assert "training diverged" in status.reason
    assert list(made.glob("checkpoints/*")) == []
    assert main(["train", str(made), "--resume"]) == 2
    assert "has no checkpoint to continue from" in capsys.readouterr().err
    assert num_steps(made) == 2


def num_steps(run: Path) -> int:
    with RunReader(run) as reader:
        return len(reader.steps())


def test_one_with_a_kl_term_keeps_its_reference_and_can_be_resumed_and_forked(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, made = what_if(run, "--until", "4", "--set", "objective.kl_coefficient=0.05", capsys=capsys)
    started = safetensors(run.parents[1] / "model")
    assert safetensors(made / "reference") == started
    resumed = Run(run.parents[1] / "tiny.toml", "--run.name", made.name, "--resume", "--train.num_steps", "5")
    assert resumed.wait(240) == 0, resumed.output
    forked = made.with_name("forked")
    assert main(["fork", str(made), "--at", "4", "--run.name", forked.name, "--train.num_steps", "5"]) == 0
    assert safetensors(forked / "reference") == started
    assert num_steps(made) == num_steps(forked) == 5


def safetensors(directory: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(directory / "model.safetensors").items()}


def test_a_preset_that_decides_which_groups_are_in_a_batch_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(run), "--set", "objective.preset=dapo"]) == 2
    assert "makes it objective.dynamic_sampling = true (was false), which decides" in capsys.readouterr().err


def test_it_ends_when_the_batches_say_too_little_about_the_new_policy(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, made = what_if(run, "--set", "train.lr=0.3", "--set", "objective.clip=none", capsys=capsys)
    assert "stopped after step" in output
    assert "below 0.3: the recorded batches say too little about this policy" in output
    with RunReader(made) as reader:
        *before, last = reader.steps()
        status = reader.status()
    assert last.metrics["effective_sample_size"] < 0.3
    assert all(step.metrics.get("effective_sample_size", 1.0) >= 0.3 for step in before)
    assert last.version < 8
    assert status.state == "finished"
    assert "stopped after step" in status.reason


def test_settings_that_decided_the_batches_are_refused_and_leave_nothing_behind(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(run.parent.iterdir())
    assert main(["replay", str(run), "--set", "sampling.temperature=0.5"]) == 2
    assert "it decides what was generated" in capsys.readouterr().err
    assert main(["replay", str(run), "--from", "9", "--set", "train.lr=0.5"]) == 2
    assert main(["replay", str(run), "--set", "train.lr=nonsense"]) == 2
    assert main(["replay", str(run), "--set", "train.lr=0.1", "--save", str(run.parent / "x")]) == 2
    assert sorted(run.parent.iterdir()) == before
