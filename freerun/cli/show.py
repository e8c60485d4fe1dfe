"""`freerun show`: the summary of a run, or its completions with rewards, advantages and weights."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from freerun.cli.arguments import Parser
from freerun.cli.run_argument import EXPLANATION, find_run
from freerun.errors import FreerunError

if TYPE_CHECKING:
    import argparse

    from freerun.data.tokenizer import Tokenizer
    from freerun.events.reader import RunReader
    from freerun.events.selection import Selection
    from freerun.terminal.samples import SampleParts

EPILOG = """\
Without options: the summary that the run ended with; of a run that is still active, its state now.
With options: samples, each group below its prompt. Of a step, of a group, of the held-out prompts of a version, of
what was lost, or of the whole run with the newest first. Options that are given together must all hold.

  right +5  sample 3  17 tokens  staleness 2 (versions 3-5)  advantage +0.5  weight 1.1, max 3  2 clipped  cut off
    reward and verdict; sampled tokens; how old the oldest token was when it was trained on, and the versions that
    sampled it; mean advantage; behaviour weight exp(proximal - behaviour) of its tokens, mean and largest; tokens
    that the trust region held back; stopped by sampling.max_completion_tokens

  --where   wrong, right      the grader's verdict
            cut-off, empty    stopped by the limit of tokens; only white space
            stale, clipped    older than the weights they trained; held back by the trust region
            equal             in groups whose rewards are all equal
            lost              not trained on, for any reason: filtered, dropped, requeued, failed, passed-over
  --order   reward, weight, length, age: the greatest first; --reverse reverses it

examples:
  freerun show runs/first
  freerun show runs/first --step 3
  freerun show runs/first --step 3 --order weight --limit 5
  freerun show runs/first --where wrong,cut-off --text "8 * 9"
  freerun show runs/first --eval 4 --where wrong
  freerun show runs/first --where failed
  freerun show runs/first --group 17 --full
  freerun show runs/first --step 3 --json
"""
CHOICES = ("step", "group", "eval", "order", "where", "text", "limit")
"""Options that select samples."""
MAX_LIMIT = 100_000


def run(arguments: Sequence[str]) -> int:
    args = _parser().parse_own(arguments)
    directory = find_run(args.run)

    from freerun.events.reader import RunReader
    from freerun.events.selection import Selection

    with RunReader(directory) as reader:
        if all(getattr(args, name) is None for name in CHOICES) and not (args.full or args.reverse):
            return _show_summary(reader, as_json=args.json)
        selection = _selection(args)
        _check_place(reader, args.step, args.eval)
        samples = _read(reader, selection, args.eval)
        if args.json:
            _print_json(samples)
            return 0
        if not samples and args.eval is not None and not reader.num_samples(Selection(), eval_version=args.eval):
            _print_prompts(reader, args.eval)
            return 0
        _print_text(reader, samples, is_whole=args.full)
        _print_count(reader, selection, args.eval, num_shown=len(samples))
        return 0


def _show_summary(reader: RunReader, *, as_json: bool) -> int:
    from freerun.evaluation.job import is_evaluation
    from freerun.terminal.recorded import summarize_recorded, summary_as_json
    from freerun.terminal.wording import wrapped

    if is_evaluation(directory := reader.file.parent):
        raise FreerunError(f'"{directory}" is an evaluation; "freerun eval {directory} --show wrong" shows it')
    if as_json:
        print(json.dumps(_plain(summary_as_json(reader)), indent=2))
    else:
        text = summarize_recorded(reader)
        print(wrapped(text, get_terminal_size().columns) if sys.stdout.isatty() else text)
    return 0


def _selection(args: argparse.Namespace) -> Selection:
    from freerun.events.selection import FILTERS, ORDERS, Selection

    where = tuple(name for given in args.where or () for name in given.split(","))
    for name in where:
        if name not in FILTERS:
            raise FreerunError(f'--where takes no "{name}"; it takes {", ".join(FILTERS)}')
    if args.order not in (None, *ORDERS):
        raise FreerunError(f'--order takes no "{args.order}"; it takes {", ".join(ORDERS)}')
    limit = 20 if args.limit is None else args.limit
    if not 1 <= limit <= MAX_LIMIT:
        raise FreerunError(f"--limit {limit} must lie between 1 and {MAX_LIMIT:,}")
    group = -abs(args.group) if args.eval is not None and args.group is not None else args.group
    return Selection(
        step=args.step, ordinal=group, where=where, text=args.text or "", order=args.order,
        is_reversed=args.reverse, limit=limit,
    )  # fmt: skip


def _check_place(reader: RunReader, step: int | None, version: int | None) -> None:
    """Raise if the step or evaluation does not exist, with a list of those that do."""
    if step is not None and version is not None:
        raise FreerunError("--step and --eval exclude each other; leave one out")
    if step is not None and reader.step(step) is None:
        found = reader.step_range()
        known = f"it has the steps {found[0]} to {found[1]}" if found else "it has made none yet"
        raise FreerunError(f"step {step} is not in {reader.file}: {known}")
    if version is not None and version not in (versions := [row.version for row in reader.evals()]):
        known = f"those of {_listed(versions)} were" if versions else "none was yet"
        raise FreerunError(f"version {version} was not evaluated in {reader.file}: {known}")


def _listed(versions: Sequence[int]) -> str:
    shown = [*map(str, versions)] if len(versions) <= 12 else [*map(str, versions[:6]), "...", str(versions[-1])]
    return ", ".join(shown)


def _read(reader: RunReader, selection: Selection, version: int | None) -> Sequence[SampleParts]:
    """The selected samples; for an untrained group, what was kept, or an error with the reason."""
    if version is not None:
        return reader.eval_samples(version, selection)
    if selection.is_of_lost:
        return reader.lost_samples(selection)
    found: Sequence[SampleParts] = reader.samples(selection)
    if found or selection.ordinal is None or reader.num_samples(_group_alone(selection)):
        return found
    return _untrained_group(reader, selection)


def _group_alone(selection: Selection) -> Selection:
    from freerun.events.selection import Selection

    return Selection(ordinal=selection.ordinal)


def _untrained_group(reader: RunReader, selection: Selection) -> Sequence[SampleParts]:
    from freerun.events.events import GroupFinished

    ordinal = selection.ordinal
    if lost := reader.lost_samples(_group_alone(selection)):
        return lost
    for event in reader.events("group_finished"):
        if isinstance(event, GroupFinished) and event.ordinal == ordinal and event.outcome != "buffered":
            reason = f" ({event.reason.strip().splitlines()[-1]})" if event.reason.strip() else ""
            raise FreerunError(
                f"group {ordinal} was not trained on: {event.outcome.replace('_', ' ')}{reason}, and its text was "
                "not kept; --where lost shows what was"
            )
    raise FreerunError(
        f"group {ordinal} was not trained on in {reader.file}: it is still in work, or no prompt had this number"
    )


def _print_text(reader: RunReader, samples: Sequence[SampleParts], *, is_whole: bool) -> None:
    from rich.console import Console

    from freerun.terminal.samples import print_samples

    print_samples(Console(), samples, is_whole=is_whole, tokenizer=_tokenizer_of(reader.file.parent))


def _tokenizer_of(directory: Path) -> Callable[[], Tokenizer | None]:
    """The run's tokenizer, read when first needed; without it sessions are shown in one piece."""

    @cache
    def load() -> Tokenizer | None:
        from freerun.data.tokenizer import Tokenizer
        from freerun.errors import ModelError

        try:
            return Tokenizer.load(directory / "model")
        except ModelError:
            return None

    return load


def _print_count(reader: RunReader, selection: Selection, version: int | None, *, num_shown: int) -> None:
    """Print how many more samples there are; not for the whole run, where counting would read all of it."""
    if num_shown and num_shown < selection.limit:
        return
    is_small = selection.step is not None or version is not None or selection.is_of_lost
    if not num_shown:
        print("nothing matches" if selection.where or selection.text else "nothing was kept")
    elif not is_small:
        print(f"\nthe first {num_shown}; --limit {10 * num_shown} shows more")
    elif (number := reader.num_samples(selection, eval_version=version)) > num_shown:
        print(f"\n{num_shown} of {number} samples; --limit {number} shows all")


def _print_prompts(reader: RunReader, version: int) -> None:
    """Print the result of each prompt, for an evaluation without kept completions."""
    from freerun.cli.report_table import print_table

    rows = [
        (
            row.key,
            f"{row.num_correct} of {row.num_samples}",
            f"{row.mean_reward:.3g}",
            f"{row.mean_length:.1f}",
            row.failure,
        )
        for row in reader.eval_prompts(version)
    ]
    print_table(("held-out prompt", "right", "reward", "length", "failure"), rows)


def _print_json(samples: Sequence[SampleParts]) -> None:
    """A JSON array with one sample per line, so a pipe that stops early still has whole samples."""
    print("[")
    for index, parts in enumerate(samples):
        print(json.dumps([_as_json(row) for row in parts]) + ("," if index + 1 < len(samples) else ""))
    print("]")


def _as_json(row: Any) -> Any:
    import msgspec

    return _plain(msgspec.to_builtins(row, enc_hook=lambda value: value.tolist()))


def _plain(value: Any) -> Any:
    """The value without NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parser() -> Parser:
    usage = (
        "RUN [--step N | --eval VERSION] [--group ORDINAL] [--where NAME] [--text WORD]\n"
        "                    [--order NAME] [--reverse] [--limit N] [--full] [--json]"
    )
    parser = Parser("freerun show", "Show what a run did: its summary, or its completions.", EPILOG, usage=usage)
    parser.take("run", "RUN", EXPLANATION)
    parser.take("--step", "N", "what this step trained on", type=int)
    parser.take("--eval", "VERSION", "held-out completions of the evaluation of this version", type=int)
    parser.take("--group", "ORDINAL", "the samples of one prompt; with --eval, of one held-out prompt", type=int)
    parser.take("--where", "NAME", "only samples of this kind; several with commas", action="append", type=str)
    parser.take("--text", "WORD", "only samples with this in prompt, completion or answer", type=str)
    parser.take("--order", "NAME", "reward, weight, length or age, the greatest first", type=str)
    parser.flag("--reverse", "reverse the order")
    parser.take("--limit", "N", "samples to show; default: 20", type=int)
    parser.flag("--full", "do not cut long prompts and completions")
    parser.flag("--json", "print JSON: everything that was recorded, token by token")
    return parser
