"""Is a real run the same again, and how long does that take? The demo, whose trainer borrows idle cores.

    python -m bench replay                      # as a claim: trains and replays the demo in each repetition
    python -m bench.replay                      # once
    python -m bench.replay --steps 6            # shorter; records nothing
    python -m bench.replay --run runs/demo      # a run that is there already; records nothing

The demo is trained until cores have moved 40 times: for 45 steps, and where these are too few it is resumed for 15
more, up to 90. It is replayed on one and on two threads, and all its groups are sampled again. Claimed is that the
replay on one thread takes at most 1.10 times as long as the run trained, and that every version has the recorded
checksum, every completion the recorded tokens and every logprob the recorded bits. It exits with 1 if one of these
is not so, or if fewer cores have moved.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness import ROOT, Result, record, show
from bench.models import smollm2
from freerun.events.reader import RunReader

RECIPE = "times-tables"
NUM_STEPS, MORE_STEPS, MOST_STEPS = 45, 15, 90
LEAST_MOVES = 40
AT_MOST = 1.10
TIMED = ("--threads", "1")
WAYS = (TIMED, ("--threads", "2"), ("--group", "all"))


@dataclass
class Checked:
    """A run, and what its replays said."""

    trained_seconds: float
    """What its trainer computed."""
    facts: dict[str, Any]
    replayed_seconds: dict[str, float] = field(default_factory=dict)
    """By the options of the replay, from its start as a command."""
    others: list[str] = field(default_factory=list)
    """Options with which something was not as recorded, and what else must be so and is not."""

    @property
    def ratio(self) -> float:
        return self.replayed_seconds[" ".join(TIMED)] / self.trained_seconds


def measure(repetitions: int) -> None:
    """Record the claim; exits with 1 if anything was not as recorded or took too long."""
    found = [_train_and_check(NUM_STEPS) for _ in range(repetitions)]
    result = Result(
        "replay of the demo on one thread, seconds",
        "the run's own training",
        AT_MOST,
        1.0,
        unit="x",
        ours=[each.replayed_seconds[" ".join(TIMED)] for each in found],
        theirs=[each.trained_seconds for each in found],
        lower_is_better=True,
        settings={"runs": [each.facts | {"replayed_seconds": each.replayed_seconds} for each in found]},
        note="all versions, tokens and logprobs as recorded"
        if not any(each.others for each in found)
        else "NOT all as recorded",
    )
    record("replay", result)
    if not result.is_met or any(each.others for each in found):
        raise SystemExit(1)


def _train_and_check(num_steps: int, least_moves: int = LEAST_MOVES) -> Checked:
    with tempfile.TemporaryDirectory(prefix="freerun-replay-bench-") as scratch:
        run = train(Path(scratch), num_steps)
        while num_core_moves(run) < least_moves and num_steps < MOST_STEPS:
            num_steps += MORE_STEPS
            train(Path(scratch), num_steps, "--resume")
        checked = check(run)
    if checked.facts["num_core_moves"] < least_moves:
        checked.others.append(f"{checked.facts['num_core_moves']} moves of cores, of at least {least_moves}")
    return checked


def train(directory: Path, num_steps: int, *options: str) -> Path:
    place = ("--run.directory", str(directory), "--run.name", "demo", "--model.path", str(smollm2()))
    settings = ("--train.num_steps", str(num_steps), *options)
    code, output, _ = freerun("train", RECIPE, *place, *settings)
    if code:
        raise SystemExit(output)
    return directory / "demo"


def num_core_moves(run: Path) -> int:
    with RunReader(run) as reader:
        return sum(1 for _ in reader.events("cores_moved"))


def freerun(*arguments: str) -> tuple[int, str, float]:
    """Exit code, output and seconds of a command."""
    began = time.monotonic()
    command = [sys.executable, "-m", "freerun.cli.main", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout, time.monotonic() - began


def check(run: Path) -> Checked:
    """Replay it in every way."""
    checked = _describe(run)
    for options in WAYS:
        name = " ".join(options)
        code, output, seconds = freerun("replay", str(run), *options)
        checked.replayed_seconds[name] = round(seconds, 1)
        if code or not says_all_the_same(output):
            checked.others.append(name)
        show(f"== {name}: {seconds:.0f} s, {seconds / checked.trained_seconds:.2f} of the run's training")
        show(output.rstrip())
    return checked


def says_all_the_same(output: str) -> bool:
    """Whether no version, token or logprob is another: sampling continues after one, with a warning."""
    counted = re.findall(r"(\d+) of (\d+) (?:versions|completions|calls|logprobs) have the recorded", output)
    is_same = all(same == number for same, number in counted)
    return bool(counted) and is_same and "is not as recorded" not in output


def _describe(run: Path) -> Checked:
    with RunReader(run) as reader:
        steps = reader.steps()
        rows = [row for step in steps for row in reader.trajectories(step.version)]
    facts = {
        "num_steps": len(steps),
        "num_core_moves": num_core_moves(run),
        "num_completions": len(rows),
        "num_interrupted": sum(len(row.spans) > 1 for row in rows),
    }
    checked = Checked(sum(step.step_seconds for step in steps), facts)
    show(f"{checked.trained_seconds:.0f} s of training: {facts}")
    return checked


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--run", type=Path)
    args = parser.parse_args()
    least_moves = LEAST_MOVES if args.steps >= NUM_STEPS else 0
    checked = check(args.run) if args.run else _train_and_check(args.steps, least_moves)
    if checked.others:
        raise SystemExit(f"not as it should be: {', '.join(checked.others)}")
    if checked.ratio > AT_MOST:
        raise SystemExit(f"{checked.ratio:.2f} of the run's training on one thread is more than {AT_MOST}")


if __name__ == "__main__":
    main()
