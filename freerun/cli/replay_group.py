"""`freerun replay --group`: samples recorded groups again; says which tokens differ and how close it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from freerun.cli.streams import harmless
from freerun.errors import FreerunError

if TYPE_CHECKING:
    import argparse

    from freerun.data.tokenizer import Tokenizer
    from freerun.engine.resampling import OtherToken, Resampled
    from freerun.replay.group import GroupPlan, ReplayedGroups

    Progress = Callable[[], AbstractContextManager[Callable[[str, int, int], None]]]

MAX_SHOWN = 20
"""How many completions are listed individually."""


def ordinals(text: str) -> list[int]:
    """Ordinals of groups; an empty list means all of them."""
    return [] if text == "all" else [int(part) for part in text.split(",")]


def sample_again(directory: Path, args: argparse.Namespace, progress: Progress) -> int:
    """The verb with `--group`; returns its exit code."""
    for option, value in (("--from", args.first), ("--until", args.until), ("--save", args.save)):
        if value is not None:
            raise FreerunError(f"{option} chooses steps to train, --group a group to sample; give one of them")
    if args.set:
        raise FreerunError(
            "--set trains with other settings, --group samples with the recorded ones; give one of them"
        )

    from freerun.data.tokenizer import Tokenizer
    from freerun.replay.group import plan_groups, replay_groups
    from freerun.session.run_directory import RunDirectory

    run = RunDirectory(directory)
    plan = plan_groups(run, args.group, num_threads=args.threads)
    _announce(plan, args.group)
    with progress() as on_progress:
        replayed = replay_groups(plan, on_progress=on_progress)
    return _conclude(plan, replayed, Tokenizer.load(run.model))


def _announce(plan: GroupPlan, asked: Sequence[int]) -> None:
    versions, training = plan.versions, plan.training
    what = f"group {asked[0]}" if len(asked) == 1 else f"{len({call.ordinal for call in plan.calls})} groups"
    under = f"version {versions[0]}" if len(versions) == 1 else f"versions {versions[0]} to {versions[-1]}"
    num_interrupted = sum(call.is_interrupted for call in plan.calls)
    counted = f"{len(plan.calls)} {_noun(plan)}, {num_interrupted} of them interrupted"
    print(f"sampling {what} of {training.run.path} again under {under}: {counted}")
    print(f"version {training.start} is {training.source}")
    for warning in plan.warnings:
        print(f"warning: {warning}")


def _noun(plan: GroupPlan) -> str:
    return "calls" if plan.is_of_sessions else "completions"


def _conclude(plan: GroupPlan, replayed: ReplayedGroups, tokenizer: Tokenizer) -> int:
    if (difference := replayed.difference) is not None:
        first = harmless(difference.lines[0])
        print(f"warning: version {difference.version} is the first that is not as recorded: {first}")
    results = replayed.results
    others = [result for result in results if not result.is_same]
    print(f"{len(results) - len(others)} of {len(results)} {_noun(plan)} have the recorded tokens")
    print(_logprobs(results))
    for result in others[:MAX_SHOWN]:
        print(f"  {_described(result, tokenizer)}")
    if len(others) > MAX_SHOWN:
        print(f"  and {len(others) - MAX_SHOWN} more")
    return 1 if others else 0


def _logprobs(results: Sequence[Resampled]) -> str:
    num_same = sum(result.num_drawn - result.num_others for result in results)
    num_equal = sum(result.num_equal_logprobs for result in results)
    if num_equal == num_same:
        return f"{num_equal} of {num_same} logprobs have the recorded bits"
    largest = max(result.largest_difference for result in results)
    return f"{num_equal} of {num_same} logprobs have the recorded bits, the others differ by at most {largest:.1e}"


def _described(result: Resampled, tokenizer: Tokenizer) -> str:
    call, other = result.call, result.first_other
    who = f"group {call.ordinal} sample {call.sample}"
    if call.part or call.call:
        who += f" part {call.part} call {call.call}"
    if other is None:
        return f"{who}: only {result.num_drawn} of {len(call.token_ids)} tokens were drawn"
    return f"{who}: {_compared(other, tokenizer)}; {result.num_others} of {len(call.token_ids)} tokens differ"


def _compared(other: OtherToken, tokenizer: Tokenizer) -> str:
    drawn, recorded = (_shown(token, tokenizer) for token in (other.drawn, other.recorded))
    return (
        f"token {other.position} (version {other.version}) is {drawn} with probability "
        f"{other.drawn_probability:.4g}, recorded was {recorded} with {other.recorded_probability:.4g}; "
        f"the random number {other.uniform:.6f} missed it by {other.distance:.1e}"
    )


def _shown(token: int, tokenizer: Tokenizer) -> str:
    """The token as text without terminal control characters."""
    return repr(tokenizer.shown(tokenizer.rendered([token])))
