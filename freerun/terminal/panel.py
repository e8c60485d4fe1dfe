"""The live view: renders a `RunState`.

    title ─ progress ─ facts (two columns, or one on a narrow terminal) ─ health ─ processes ─ recent completions

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

from freerun.events.events import RecentCompletion
from freerun.events.metrics import RunState
from freerun.terminal.facts import Live, facts, position, sft
from freerun.terminal.health_lines import panel_lines
from freerun.terminal.wording import describe_doing, duration, printable
from freerun.types import ProcessState

WIDE, WIDER = 110, 170
"""Terminal widths from which facts are shown in two and in three columns."""
FRAME_ROWS = 4
"""Rows for the frame, the progress, and the line below, which a terminal needs for its cursor."""
MIN_FACTS = 3
PRIORITY = (
    "reward",
    "held-out",
    "staleness",
    "generation",
    "training",
    "trained",
    "policy",
    "interrupts",
    "queues",
)
"""Facts shown first on a low terminal; others follow."""
ROLES = ("trainer", "rollout", "agent", "grader")
"""Processes shown first on a low terminal; others follow."""
MAX_FINDINGS = 4
"""Rows for the health of the run."""
OWN_HINT = "Ctrl-C saves and stops"
"""The hint shown in the terminal that runs the run."""
STYLES: dict[ProcessState, str] = {"waiting": "yellow", "died": "bold red"}


def render(state: RunState, *, now: float, width: int, height: int, hint: str = OWN_HINT) -> RenderableType:
    """The whole view, no higher than the terminal; completions get the remaining rows."""
    room = max(0, height - FRAME_ROWS)
    numbers = _facts(
        state, num_columns=1 + (width >= WIDE) + (width >= WIDER), max_rows=max(MIN_FACTS, 2 * room // 5)
    )
    room -= len(numbers.rows) + 1
    health = panel_lines(state, now, max_rows=min(MAX_FINDINGS, height // 8, max(0, room - 1)))
    room -= len(health) + bool(health)
    processes = _processes(state, now, max_rows=min(room - 1, max(3, room // 2)))
    room -= len(processes.rows) + bool(processes.rows)
    completions = _completions(state.recent, room - 1, max(16, 2 * width // 5))
    parts: list[RenderableType] = [_progress(state, now), Text(), numbers]
    parts += [Text(), *health] if health else []
    for table in (processes, completions):
        parts += [Text(), table] if table.rows else []
    return Panel(
        Group(*parts),
        box=box.ROUNDED,
        border_style="dim",
        title=Text.assemble(("freerun ", "bold cyan"), (printable(state.name, 60), "bold")),
        title_align="left",
        subtitle=_footer(state, hint),
        subtitle_align="right",
        padding=(0, 1),
    )


def _grid(gap: int) -> Table:
    return Table.grid(padding=(0, gap, 0, 0), expand=True)


def _progress(state: RunState, now: float) -> Table:
    """`step 12/60 ━━━━━━━━━  3:12  12:40 left`."""
    grid = _grid(1)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    at = position(state, now)
    meter = ProgressBar(total=max(1, at.total), completed=at.done, complete_style="cyan", finished_style="green")
    tail = [sft(state).line if at.name == "SFT" else "", at.left]
    elapsed = duration(max(0.0, now - state.started))
    grid.add_row(Text(at.label, "bold"), meter, _text((elapsed, *((f"  {word}", "dim") for word in tail if word))))
    return grid


def _facts(state: RunState, *, num_columns: int, max_rows: int) -> Table:
    """The facts that show whether the run learns, keeps its bound and wastes no time, column by column."""
    known = {fact.name: fact.live for fact in facts(state) if fact.live is not None}
    chosen = sorted(known, key=lambda name: PRIORITY.index(name) if name in PRIORITY else len(PRIORITY))
    chosen = chosen[: num_columns * max_rows]
    shown = [(name, _text(live or (("–", "dim"),))) for name, live in known.items() if name in chosen]
    grid = _grid(2)
    for _ in range(num_columns):
        grid.add_column(style="dim", no_wrap=True, width=10)
        grid.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    num_rows = -(-len(shown) // num_columns)
    for row in range(num_rows):
        grid.add_row(*(cell for fact in shown[row::num_rows] for cell in fact))
    return grid


def _processes(state: RunState, now: float, max_rows: int) -> Table:
    """One line per process: what it does, for how long, and what an engine holds."""
    grid = _grid(2)
    grid.add_column(style="dim", no_wrap=True, max_width=14, overflow="ellipsis", min_width=10)
    grid.add_column(no_wrap=True, justify="right", width=7)
    grid.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    workers = [] if state.finished else sorted(state.activities, key=_role)  # processes end with the run
    num_shown = len(workers) if len(workers) <= max_rows else max(0, max_rows - 1)
    for worker in workers[:num_shown]:
        activity = state.activities[worker]
        doing = (describe_doing(activity.doing), STYLES.get(activity.doing.state, ""))
        since = duration(max(0.0, now - activity.seconds))
        details = (f"  {_details(state, worker)}", "dim not bold")
        grid.add_row(printable(worker, 40), Text(since, "dim"), _text((doing, details)))
    if num_shown < len(workers) and max_rows > 0:
        grid.add_row("", "", Text(f"and {len(workers) - num_shown} more", "dim"))
    return grid


def _role(worker: str) -> tuple[int, str]:
    role = worker.partition("-")[0]
    return ROLES.index(role) if role in ROLES else len(ROLES), worker


def _details(state: RunState, worker: str) -> str:
    """What an engine holds, or which cores the trainer has."""
    if worker == "trainer" and state.cores is not None:
        num_cores, num_borrowed = len(state.cores.cores), state.cores.num_borrowed
        borrowed = f", {num_borrowed} lent by idle rollout workers" if num_borrowed else ""
        return f"on {num_cores} core{'s' if num_cores > 1 else ''}{borrowed}"
    if worker not in state.engines:
        return ""
    engine, activity = state.engines[worker], state.activities[worker]
    stats, parts = engine.latest, []
    # Counters are reported periodically; counters from before the current activity would contradict it.
    if engine.reported >= activity.seconds:
        parts += [f"{stats.num_running} running"] if activity.doing.num_done is None else []
        parts += [f"{stats.num_waiting} waiting"] if stats.num_waiting else []
        parts += [f"{stats.num_evaluating} evaluating"] if stats.num_evaluating else []
    version = engine.loaded_version
    return ", ".join([*parts, "no weights yet" if version is None else f"version {version}"])


def _completions(recent: Iterable[RecentCompletion], max_rows: int, tail_chars: int) -> Table:
    """The newest completions: reward, end of the prompt, sampled text."""
    grid = _grid(1)
    grid.add_column(no_wrap=True, justify="right", width=7)
    grid.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    for shown in list(recent)[::-1][: max(0, max_rows)]:
        style = "green" if shown.is_correct else "red"
        prompt = printable(shown.prompt).rstrip("⏎ ")
        tail = prompt if len(prompt) <= tail_chars else "…" + prompt[1 - tail_chars :]
        text = _text(((tail, "dim"), (" → ", style), printable(shown.completion).strip(" ")))
        grid.add_row(Text(f"{shown.reward:+.3g}", style), text)
    return grid


def _footer(state: RunState, hint: str) -> Text:
    if state.finished:
        style = {"finished": "bold green", "interrupted": "bold yellow"}.get(state.finished.outcome, "bold red")
        return Text(state.finished.outcome, style)
    notes = Text("", "dim")
    if state.deaths:
        notes.append(f"{len(state.deaths)} worker deaths · ", "bold red")
    if state.checkpoint:
        notes.append(f"checkpoint {state.checkpoint.version} · ")
    return notes.append(hint)


def _text(parts: Live) -> Text:
    pieces = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((printable(text), style) for text, style in pieces))
