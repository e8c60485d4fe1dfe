"""`freerun replay`: trains the recorded batches of a run again, and compares every version with its checksum."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from freerun.cli.arguments import Parser
from freerun.cli.replay_group import ordinals, sample_again
from freerun.cli.run_argument import EXPLANATION, find_run
from freerun.cli.streams import harmless

if TYPE_CHECKING:
    from freerun.replay.difference import Difference
    from freerun.replay.plan import ReplayPlan
    from freerun.replay.replay import Replayed

EPILOG = """\
No engine and no grader is started: the batches are those in the run's store, in their recorded order. The exit
code is 0 if every version has the recorded checksum, 1 if one has not.

With --group an engine draws the tokens of a group again, with the random numbers and under the versions that they
were drawn with. The exit code is 0 if all are the recorded ones, 1 if one is not.

examples:
  freerun replay runs/times-tables
  freerun replay runs/times-tables --from 30 --until 40
  freerun replay runs/times-tables --until 17 --save models/version-17
  freerun replay runs/times-tables --group 17
  freerun replay runs/times-tables --from 30 --set objective.clip_high=0.1 --set train.lr=1e-5

With --set the batches from step N on are trained with other settings, into a new run
(runs/times-tables-what-if-1): what would have become of the policy. Only [objective] and [train] can be set.
"""


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)
    found = find_run(args.run)

    from freerun.replay.plan import plan_replay
    from freerun.replay.replay import replay

    directory = found if found.is_dir() else found.parent
    if args.group is not None:
        return sample_again(directory, args, show_progress)
    if args.set:
        from freerun.cli.what_if import run_what_if

        return run_what_if(directory, args)
    plan = plan_replay(directory, first=args.first, last=args.until, num_threads=args.threads)
    announce(plan)
    with show_progress() as on_progress:
        replayed = replay(plan, save=args.save, on_progress=on_progress)
    return _conclude(plan, replayed, args.save)


def announce(plan: "ReplayPlan") -> None:
    threads = "1 thread" if plan.num_threads == 1 else f"{plan.num_threads} threads"
    print(f"training {plan.run.path} again from version {plan.start} to {plan.last} on {threads}")
    print(f"version {plan.start} is {plan.source}")
    for warning in plan.warnings:
        print(f"warning: {warning}")


def show_difference(difference: "Difference") -> None:
    """Print the differences below a heading; names of metrics and prompts are untrusted text."""
    for line in difference.lines:
        print(f"  {harmless(line)}")


def _conclude(plan: "ReplayPlan", replayed: "Replayed", save: Path | None) -> int:
    difference = replayed.difference
    if difference is not None:
        print(f"version {difference.version} is the first that is not as recorded:")
        show_difference(difference)
        print(f"{replayed.num_same} versions before it have the recorded checksum")
        if save is not None:
            print(f'"{save}" was not written')
        return 1
    num_known = replayed.num_versions - replayed.num_unknown
    print(f"{replayed.num_same} of {num_known} versions have the recorded checksum")
    if replayed.num_unknown:
        print(f"{replayed.num_unknown} more have none: no engine had loaded them; their metrics are as recorded")
    if save is not None:
        print(f"version {plan.last} is in {save}")
    return 0


@contextmanager
def show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on a terminal, a line every few seconds elsewhere; on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from freerun.terminal.lines import ProgressLines

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("starting the trainer", total=None)

        lines: dict[str, ProgressLines] = {}

        def report(what: str, num_done: int, num_total: int) -> None:
            progress.update(bar, description=what, completed=num_done, total=num_total)
            lines.setdefault(what, ProgressLines(console, num_total))(num_done, f"steps of {what}")

        yield report


def _parser() -> Parser:
    description = "Train a run's recorded batches again and compare every version with the recorded checksum."
    parser = Parser(
        "freerun replay",
        description,
        EPILOG,
        usage="RUN [--from N] [--until N] [--threads N] [--save DIR | --set KEY=VALUE ...]\n"
        "       freerun replay RUN --group N [--threads N]",
    )
    parser.take("run", "RUN", EXPLANATION)
    parser.take(
        "--from", "N", "begin at the newest checkpoint before step N; default: version 0", type=int, dest="first"
    )
    parser.take("--until", "N", "the last step; default: the newest that is recorded", type=int)
    parser.take("--threads", "N", "threads of the trainer; default: as recorded", type=int)
    parser.take(
        "--group", "N", "sample this group again under its recorded versions; several: 3,17; or all", type=ordinals
    )
    parser.take("--save", "DIR", "write the model of the last version into this new directory")
    parser.take(
        "--set", "KEY=VALUE", "train with this setting from step N on, into a new run", type=str, action="append"
    )
    return parser
