"""The content of the live view: a `RunState` in, renderables out.

    title ─ progress ─ numbers (two columns, or one on a narrow terminal) ─ processes ─ recent completions

Pure functions of the state, the run's clock and the terminal's size. Untrusted text enters only as
`rich.text.Text` of `printable` text, so neither markup nor control characters survive.
"""

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from freerun.events.accuracy import percent
from freerun.events.events import CoresMoved
from freerun.events.metrics import RecentCompletion, RunState
from freerun.terminal.wording import (
    bar,
    count,
    describe_doing,
    duration,
    histogram,
    printable,
    share_of_time,
    sparkline,
)
from freerun.types import ProcessState

WIDE = 110
STYLES: dict[ProcessState, str] = {"waiting": "yellow", "died": "bold red"}
Row = tuple[str, Text]


def render(state: RunState, *, now: float, width: int, height: int) -> RenderableType:
    """The whole view, no higher than the terminal allows."""
    numbers = _numbers(state, width)
    num_number_lines = 4 if width >= WIDE else 8
    num_free = max(0, height - num_number_lines - 7)
    processes = _processes(state, now, max(1, num_free - 4))
    completions = _completions(state.recent, num_free - len(processes.rows) - 1, max(16, 2 * width // 5))
    parts: list[RenderableType] = [_progress(state, now), Text(), numbers]
    if processes.rows:
        parts += [Text(), processes]
    if completions.rows:
        parts += [Text(), completions]
    title = Text.assemble(("freerun ", "bold cyan"), (printable(state.name, 60), "bold"))
    return Panel(
        Group(*parts),
        box=box.ROUNDED,
        border_style="dim",
        title=title,
        title_align="left",
        subtitle=_footer(state),
        subtitle_align="right",
        padding=(0, 1),
    )


def _progress(state: RunState, now: float) -> Table:
    """`step 12/60 ━━━━━━━━━  3:12, 12:40 left`."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    if state.sft and not state.steps:
        sft, left = state.sft[-1], state.sft_seconds_left
        label = Text(f"SFT {sft.step}/{sft.num_steps}", "bold")
        loss = f"loss {sft.loss:.3f}" if sft.loss is not None else ""
        done, total, tail = sft.step, sft.num_steps, f"{loss}  {duration(left)} left" if left else loss
    else:
        label = Text(f"step {state.version}/{state.num_steps}", "bold")
        eta = state.eta_seconds(now)
        done, total, tail = state.version, state.num_steps, f"{duration(eta)} left" if eta is not None else ""
    elapsed = duration(max(0.0, now - state.started))
    meter = ProgressBar(total=max(1, total), completed=done, complete_style="cyan", finished_style="green")
    grid.add_row(label, meter, Text.assemble(elapsed, ("  " + tail if tail else "", "dim")))
    return grid


def _numbers(state: RunState, width: int) -> Table:
    """The numbers that show whether the run learns, keeps its bound and wastes no time."""
    left = [_reward(state), _held_out(state), _generation(state), _training(state)]
    right = [_staleness(state), _divergence(state), _interrupts(state), _groups(state)]
    is_wide = width >= WIDE
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for _ in range(2 if is_wide else 1):
        grid.add_column(style="dim", no_wrap=True, width=10)
        grid.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    if is_wide:
        for (name, value), (other_name, other_value) in zip(left, right, strict=True):
            grid.add_row(name, value, other_name, other_value)
    else:
        for name, value in left + right:
            grid.add_row(name, value)
    return grid


def _reward(state: RunState) -> Row:
    if not state.rewards:
        return "reward", _unknown()
    parts = [f"{printable(name, 16)} {mean:.2g}" for name, mean in state.reward_parts.items()]
    course = sparkline(state.rewards[-2000:], 12 if parts else 24)
    return "reward", Text.assemble(
        (f"{state.rewards[-1]:<8.3g}", "bold"), (course, "green"), ("  " + " · ".join(parts), "dim")
    )


def _held_out(state: RunState) -> Row:
    if not state.evals:
        return "held-out", _unknown()
    first, last = state.evals[0], state.evals[-1]
    if first is last:
        return "held-out", Text.assemble((percent(last.accuracy), "bold"), (f"  at version {last.version}", "dim"))
    return "held-out", Text.assemble(
        (f"{percent(first.accuracy)} → ", "dim"),
        (percent(last.accuracy), "bold"),
        (f"  at version {last.version}", "dim"),
    )


def _generation(state: RunState) -> Row:
    return "generation", _pace(state.generated_tokens_per_second, state.recent_generate_share, "busy")


def _training(state: RunState) -> Row:
    return "training", _pace(state.trained_tokens_per_second, state.recent_train_share, "busy")


def _pace(rate: float | None, share: float | None, word: str) -> Text:
    if rate is None and share is None:
        return _unknown()
    text = Text().append(f"{count(rate)} tok/s" if rate is not None else "", "bold")
    text.pad_right(max(0, 14 - len(text)))
    if share is not None:
        text.append(bar(share, 10), "cyan").append(f" {share_of_time(share)} {word}", "dim")
    return text


def _staleness(state: RunState) -> Row:
    if state.worst_staleness is None:
        return "staleness", _unknown()
    counts = state.steps[-1].result.staleness_counts
    mean = sum(value * n for value, n in counts.items()) / max(1, sum(counts.values()))
    text = Text.assemble(
        (f"{mean:.1f}", "bold"), (f"  max {max(counts, default=0)} of {state.max_staleness}  ", "")
    )
    text.append(histogram(counts, max(state.max_staleness, max(counts, default=0))), "magenta")
    if not state.is_bound_held:
        text.append(f"  BOUND BROKEN: {state.worst_staleness}", "bold white on red")
    return "staleness", text


def _divergence(state: RunState) -> Row:
    metrics = state.steps[-1].result.metrics if state.steps else {}
    shown = [
        f"{word} {value:.2g}"
        for name, word in (("engine_trainer_kl", "KL engine-trainer"), ("entropy", "entropy"))
        if (value := metrics.get(name)) is not None
    ]
    return "policy", Text(" · ".join(shown)) if shown else _unknown()


def _interrupts(state: RunState) -> Row:
    if not state.engines:
        return "interrupts", _unknown()
    return "interrupts", Text.assemble(
        (count(state.engine_total("num_interrupts")), "bold"),
        (f"  in {count(state.engine_total('num_loads'))} loads,", "dim"),
        (f" {count(state.engine_total('num_recomputed_tokens'))} tokens recomputed", "dim"),
    )


def _groups(state: RunState) -> Row:
    text = Text().append(count(state.num_trained), "bold")
    styles = {"filtered": "", "passed_over": "", "dropped": "yellow", "requeued": "yellow", "failed": "bold red"}
    lost = [(outcome, style) for outcome, style in styles.items() if state.groups[outcome]]
    text.append("  groups: " if lost else "  no group lost", "dim")
    for i, (outcome, style) in enumerate(lost):
        text.append(" · " if i else "", "dim").append(
            f"{count(state.groups[outcome])} {outcome.replace('_', ' ')}", style
        )
    return "trained", text


def _processes(state: RunState, now: float, max_rows: int) -> Table:
    """One line per process: what it does, for how long, and what an engine holds."""
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(style="dim", no_wrap=True, max_width=14, overflow="ellipsis", min_width=10)
    grid.add_column(no_wrap=True, justify="right", width=7)
    grid.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    workers = sorted(state.activities)
    num_shown = len(workers) if len(workers) <= max_rows else max_rows - 1
    for worker in workers[:num_shown]:
        activity = state.activities[worker]
        doing = Text(printable(describe_doing(activity.doing)), STYLES.get(activity.doing.state, ""))
        engine = state.engines.get(worker)
        if engine is not None:
            stats = engine.latest
            waiting = f", {stats.num_waiting} waiting" if stats.num_waiting else ""
            evaluating = f", {stats.num_evaluating} evaluating" if stats.num_evaluating else ""
            version = "no weights yet" if stats.version is None else f"version {stats.version}"
            numbers = f"  {stats.num_running} running{waiting}{evaluating}, {version}"
            doing.append(numbers, "dim not bold")
        if worker == "trainer" and state.cores is not None:
            doing.append(f"  {_cores(state.cores)}", "dim not bold")
        since = "" if state.finished else duration(max(0.0, now - activity.seconds))
        grid.add_row(printable(worker, 40), Text(since, "dim"), doing)
    if num_shown < len(workers):
        grid.add_row("", "", Text(f"and {len(workers) - num_shown} more", "dim"))
    return grid


def _cores(moved: CoresMoved) -> str:
    borrowed = f", {moved.num_borrowed} lent by idle rollout workers" if moved.num_borrowed else ""
    return f"on {len(moved.cores)} core{'s' if len(moved.cores) > 1 else ''}{borrowed}"


def _completions(recent: Iterable[RecentCompletion], max_rows: int, tail_chars: int) -> Table:
    """The newest completions: the reward, the end of the prompt, what was sampled."""
    grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
    grid.add_column(no_wrap=True, justify="right", width=7)
    grid.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    for shown in list(recent)[::-1][: max(0, max_rows)]:
        style = "green" if shown.is_correct else "red"
        prompt = printable(shown.prompt).rstrip("⏎ ")
        tail = prompt if len(prompt) <= tail_chars else "…" + prompt[1 - tail_chars :]
        text = Text.assemble((tail, "dim"), (" → ", style), printable(shown.completion).strip(" "))
        grid.add_row(Text(f"{shown.reward:+.3g}", style), text)
    return grid


def _footer(state: RunState) -> Text:
    if state.finished:
        style = {"finished": "bold green", "interrupted": "bold yellow"}.get(state.finished.outcome, "bold red")
        return Text.assemble((state.finished.outcome, style))
    notes = Text("", "dim")
    if state.deaths:
        notes.append(f"{len(state.deaths)} worker deaths · ", "bold red")
    if state.checkpoint:
        notes.append(f"checkpoint {state.checkpoint.version} · ")
    return notes.append("Ctrl-C saves and stops")


def _unknown() -> Text:
    return Text("–", "dim")
