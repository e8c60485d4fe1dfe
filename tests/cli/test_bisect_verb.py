"""`freerun bisect` on recorded runs: the step, the samples that carried it, and the commands to look at them."""

import shlex
from pathlib import Path

import msgspec
import numpy as np
import pytest
from recorded_events import a_start, an_end, an_eval, make_group, make_step, write

from freerun.cli.main import main
from freerun.events.events import StepFinished
from freerun.types import TrainedTrajectory

GOOD, BAD, NUM_STEPS = 1.0, 0.1, 40


def a_step(version: int, *, collapsed: int, heavy: bool = False, **metrics: float) -> StepFinished:
    """Sampled by the two versions before; of a heavy one, sample 1 of its second group has enormous weights."""
    wobble = 0.02 * (version % 3)
    reward = (BAD if version >= collapsed else GOOD) + wobble
    groups = tuple(make_group(2 * version + i, oldest=max(0, version - 2), text="\x1b[2J 56") for i in (0, 1))
    step = make_step(version, groups, reward=reward, grad_norm=9.0 if heavy else 1.0 + wobble, lr=0.01, **metrics)
    trained = [
        TrainedTrajectory(
            log_weights=np.full(3, 3.0 if heavy and i == 3 else 0.0, np.float16),
            advantage=(-1.0) ** i,
            clipped=np.array([0], np.int32),
        )
        for i in range(4)
    ]
    return msgspec.structs.replace(step, result=msgspec.structs.replace(step.result, trajectories=tuple(trained)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The step to version 25 is the heavy one; the batch of step 26 is the first of what it made."""
    steps = [a_step(version, collapsed=26, heavy=version == 25) for version in range(1, NUM_STEPS + 1)]
    write(tmp_path / "run", a_start(), *steps, an_end())
    return tmp_path / "run"


def bisect(run: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["bisect", str(run), *options]) == 0
    return capsys.readouterr().out


def test_the_step_its_samples_and_what_else_changed_are_named(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = bisect(run, "--metric", "reward", capsys=capsys)
    assert "reward left its level at step 26" in output
    assert "0 of 2,000 shuffles" in output
    assert "step 25 trained on samples of versions 23 to 24, step 26 on samples of versions 24 to 25" in output
    assert "so it was done by steps 24 to 25" in output
    assert "grad_norm 1.02 → 9" in output
    assert "step 25, prompt 51, sample 1: advantage -1.00, weights up to 20" in output
    assert "\x1b" not in output


def test_names_of_metrics_do_nothing_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user's grader chooses the names of its parts, maybe from what the model wrote."""
    part = "reward/\x1b[2J\x9b7m"
    values = {v: {part: float(v > 25) + 0.01 * (v % 3)} for v in range(1, NUM_STEPS + 1)}
    steps = [a_step(v, collapsed=26, **values[v]) for v in values]  # type: ignore[arg-type]
    write(tmp_path / "run", a_start(), *steps, an_end())
    output = bisect(tmp_path / "run", "--metric", "reward", capsys=capsys)
    assert r"reward/\x1b[2J\x9b7m" in output
    assert not {"\x1b", "\x9b"} & {*output}


def test_the_commands_that_it_prints_are_accepted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = bisect(run, capsys=capsys)
    commands = [shlex.split(line) for line in output.splitlines() if line.startswith("  freerun ")]
    assert [words[1] for words in commands] == ["show", "show", "replay", "replay", "fork"]
    for words in commands[:2]:
        assert main(words[1:]) == 0
    assert commands[3][-1] == "train.lr=0.0025"


def test_held_out_accuracy_is_narrowed_by_the_reward(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evals = [an_eval(version, 0.8 if version < 25 else 0.1) for version in range(0, NUM_STEPS, 6)]
    write(run, *evals)
    output = bisect(run, "--metric", "held-out", capsys=capsys)
    assert "held-out fell from 80.0 % [70.0 %, 90.0 %] at version 24" in output
    assert "to 10.0 % [0.0 %, 20.0 %] at version 30, and stayed below the best" in output
    assert "reward left its level at step 26" in output
    assert "so it was done by step 25\n" in output


def test_no_step_after_the_bad_evaluation_is_blamed_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Step 26 has tokens of version 25, but version 24 was already bad."""
    steps = [a_step(version, collapsed=26, staleness_max=1.0) for version in range(1, NUM_STEPS + 1)]
    evals = [an_eval(version, 0.8 if version < 24 else 0.1) for version in range(0, NUM_STEPS, 6)]
    write(tmp_path / "run", a_start(), *steps, *evals, an_end())
    output = bisect(tmp_path / "run", "--metric", "held-out", capsys=capsys)
    assert "step 26 on samples of versions 24 to 25" in output
    assert "so it was done by step 24\n" in output


def test_a_share_of_masked_tokens_that_rises_is_a_collapse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shares = {version: 0.5 if version > 25 else 0.01 * (version % 3) for version in range(1, NUM_STEPS + 1)}
    steps = [a_step(version, collapsed=99, masked_fraction=share) for version, share in shares.items()]
    write(tmp_path / "run", a_start(), *steps, an_end())
    output = bisect(tmp_path / "run", "--metric", "masked_fraction", capsys=capsys)
    assert "masked_fraction left its level at step 26" in output


def test_no_collapse_is_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [a_step(version, collapsed=99) for version in range(1, NUM_STEPS + 1)]
    write(tmp_path / "run", a_start(), *steps, an_end())
    assert bisect(tmp_path / "run", capsys=capsys) == f"no collapse of reward in {NUM_STEPS} steps\n"
    assert bisect(tmp_path / "run", "--metric", "held-out", capsys=capsys) == (
        "no collapse of held-out in 0 evaluations\n"
    )


def test_a_metric_that_no_step_has_is_refused_with_those_that_there_are(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", str(run), "--metric", "rewrad"]) == 2
    assert 'no step has the metric "rewrad"; there are held-out, grad_norm, lr, reward' in capsys.readouterr().err
