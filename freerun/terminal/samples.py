"""Recorded samples as text: the prompt once per group, then each completion with its reward and training facts.

    rows of a store ─► blocks: indent and styled line ─► `print_samples`

Prompts and completions are hostile: all their text goes through `printable`. Long texts are cut unless
requested whole: a prompt keeps its end, where the question is, a completion its start.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from freerun.data.tokenizer import Tokenizer
from freerun.events.metrics import failure_kind
from freerun.events.schema import EvalCompletionRow, LostRow, TrajectoryRow
from freerun.terminal.turns import SessionPiece, pieces_of
from freerun.terminal.wording import brief, count, duration, printable

RecordedRow = EvalCompletionRow | LostRow
"""A completion that was trained on (`TrajectoryRow`), held out, or lost."""
SampleParts = Sequence[RecordedRow]
Line = tuple[int, Text]
"""Indent and text of a line."""
MAX_LINES = 12
MAX_CHARS = 1200


def print_samples(
    console: Console, samples: Iterable[SampleParts], *, is_whole: bool, tokenizer: Callable[[], Tokenizer | None]
) -> None:
    """Print samples, grouped below their prompts; `tokenizer` is called only if there are sessions."""
    is_first, told = True, set[str]()
    for _, group in groupby(samples, key=_group_key):
        if not is_first:
            console.print()
        is_first = False
        for indent, text in describe_group(list(group), is_whole=is_whole, tokenizer=tokenizer, told=told):
            if console.is_terminal:
                console.print(Padding(text, (0, 0, 0, indent), expand=False))
            else:  # print without wrapping
                console.print(Text(" " * indent) + text, soft_wrap=True)


def describe_group(
    samples: Sequence[SampleParts],
    *,
    is_whole: bool,
    tokenizer: Callable[[], Tokenizer | None],
    told: set[str] | None = None,
) -> Iterator[Line]:
    """The prompt and its samples; a reason whose kind is in `told` is shortened."""
    first = samples[0][0]
    yield 0, _header(samples, told if told is not None else set())
    yield from ((2, Text(line, "dim")) for line in _shown(first.prompt, is_whole, keeps_end=True))
    for parts in samples:
        if isinstance(parts[0], LostRow) and parts[0].sample < 0:
            continue  # the group has no completions
        yield 2, _verdict(parts)
        for row in parts:
            yield from _part(row, len(parts), is_whole, tokenizer)


def _header(samples: Sequence[SampleParts], told: set[str]) -> Text:
    first = samples[0][0]
    # Held-out prompts count downwards from -1, apart from those that are trained on.
    name = f"group {first.ordinal}" if first.ordinal >= 0 else f"held-out prompt {-first.ordinal}"
    text = Text.assemble((name, "bold"), f"  {printable(first.key, 60)}")
    if first.answer:
        text.append(f"  answer {printable(first.answer, 60)}")
    if isinstance(first, LostRow):
        text.append(
            f"  {first.outcome.replace('_', ' ')} at {duration(first.seconds)}{_why(first, told)}", "yellow"
        )
    elif isinstance(first, TrajectoryRow):
        text.append(f"  trained in step {first.version}")
    else:
        text.append(f"  sampled by version {first.version}")
    if len(samples) > 1:
        text.append(f"  {_tally([parts[0] for parts in samples])}", "dim")
    return text


def _why(row: LostRow, told: set[str]) -> str:
    """The reason in full for the first group of a kind, shortened for others."""
    if not row.reason:
        return ""
    kind = failure_kind(row.reason)
    reason = brief(row.reason) if kind in told else row.reason
    told.add(kind)
    return f": {printable(reason, 2000)}"


def _tally(rows: Sequence[RecordedRow]) -> str:
    rewards = [row.reward for row in rows if math.isfinite(row.reward)]
    num_right = sum(row.is_correct for row in rows)
    return f"{num_right} right of the {len(rows)} shown, mean reward {np.mean(rewards):.3g}" if rewards else ""


def _verdict(parts: SampleParts) -> Text:
    """For example `right +5  sample 3  17 tokens  staleness 2 (versions 3-5)  advantage +0.52  cut off`."""
    row = parts[0]
    is_graded = math.isfinite(row.reward)
    words = ("right" if row.is_correct else "wrong") if is_graded else "not graded"
    style = ("green" if row.is_correct else "red") if is_graded else "yellow"
    facts = [f"sample {row.sample}", _tokens(sum(map(_num_sampled, parts)))]
    facts += _training([part for part in parts if isinstance(part, TrajectoryRow)])
    text = Text.assemble((f"{words} {row.reward:+.3g}" if is_graded else words, f"bold {style}"))
    text.append("  " + "  ".join(facts), "dim")
    if parts[-1].finish_reason == "length":
        text.append("  cut off", "yellow")
    return text


def _training(parts: Sequence[TrajectoryRow]) -> list[str]:
    """What is known about a trained sample."""
    if not parts:
        return []
    versions = [span.version for part in parts for span in part.spans if span.version is not None]
    oldest, newest = min(versions), max(versions)
    named = f"version {oldest}" if oldest == newest else f"versions {oldest}-{newest}"
    facts = [f"staleness {max(part.staleness for part in parts)} ({named})"]
    if known := [part.advantage for part in parts if math.isfinite(part.advantage)]:
        facts.append(f"advantage {np.mean(known):+.3g}")
    log_weights = np.concatenate([part.log_weights for part in parts]).astype(np.float64)
    if log_weights.size:
        weights = np.exp(log_weights)
        facts.append(f"weight {weights.mean():.3g}, max {weights.max():.3g}")
    num_clipped = sum(part.num_clipped for part in parts)
    return [*facts, f"{num_clipped} clipped"] if num_clipped else facts


def _part(
    row: RecordedRow, num_parts: int, is_whole: bool, tokenizer: Callable[[], Tokenizer | None]
) -> Iterator[Line]:
    if num_parts > 1:
        yield 4, Text(f"sequence {row.part + 1} of {num_parts}", "dim")
    pieces = pieces_of(row, tokenizer) if isinstance(row, TrajectoryRow) else None
    if pieces is not None:
        for piece in pieces:
            yield from _turn(piece, row, is_whole)
    else:
        lines = _shown(row.completion, is_whole) if row.completion.strip() else ["(no text)"]
        yield from ((4, Text(line)) for line in lines)
    if isinstance(row, TrajectoryRow) and row.part == 0:
        yield from ((4, Text(line, "dim")) for line in _details(row))


def _turn(piece: SessionPiece, row: RecordedRow, is_whole: bool) -> Iterator[Line]:
    """The policy's text, or given text, which is dim."""
    if piece.call is None:
        label, style = f"given, {_tokens(piece.num_tokens)}", "dim"
    else:
        versions = "-".join(str(version) for version in sorted(set(piece.versions)))
        label, style = f"turn {piece.call + 1}, {_tokens(piece.num_tokens)} of version {versions}", ""
        turns = row.reward_turns if isinstance(row, TrajectoryRow) else ()
        if piece.call < len(turns):
            label += f", reward {turns[piece.call]:+.3g}"
    yield 4, Text(label, "italic dim")
    yield from ((6, Text(line, style)) for line in _shown(piece.text, is_whole))


def _details(row: TrajectoryRow) -> Iterator[str]:
    if len(row.spans) > 1 and all(span.version is not None for span in row.spans):
        yield "spans: " + ", ".join(f"{span.num_tokens} of version {span.version}" for span in row.spans)
    if row.reward_parts:
        yield "reward: " + " · ".join(f"{printable(name, 40)} {v:+.3g}" for name, v in row.reward_parts.items())


def _shown(text: str, is_whole: bool, *, keeps_end: bool = False) -> list[str]:
    """The lines of a text, each printable; a long text is cut, with a note."""
    text = text.rstrip("\n")
    if is_whole:
        return [printable(line, len(line)) for line in text.split("\n")]
    kept = text[-MAX_CHARS:] if keeps_end else text[:MAX_CHARS]
    lines = kept.split("\n")
    lines = lines[-MAX_LINES:] if keeps_end else lines[:MAX_LINES]
    num_left = len(text) - len("\n".join(lines))
    shown = [printable(line, MAX_CHARS) for line in lines]
    if not num_left:
        return shown
    note = f"… {count(num_left)} characters {'before' if keeps_end else 'more'}: --full shows them"
    return [note, *shown] if keeps_end else [*shown, note]


def _tokens(number: int) -> str:
    return f"{count(number)} token{'s' if number != 1 else ''}"


def _num_sampled(row: RecordedRow) -> int:
    if isinstance(row, TrajectoryRow):
        return sum(span.num_tokens for span in row.spans if span.version is not None)
    return len(row.token_ids)


def _group_key(parts: SampleParts) -> tuple[int, int]:
    row = parts[0]
    return row.ordinal, row.event if isinstance(row, LostRow) else row.version
