"""Draws the figures. matplotlib is imported only here: tables and CSV work without it.

Colours are Okabe and Ito's, safe for colour-blind readers; markers and dashes carry the same information. Bands
and bars are 95 % intervals over seeds. A band that would hide the lines is left out.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from freerun.errors import FreerunError
from freerun.events.accuracy import percent
from freerun.events.pass_at_k import Estimate
from freerun.reports.curves import Axis, Curve, bin_size_for, mean_curve
from freerun.reports.groups import GroupSummary, RunGroup
from freerun.reports.record import HELD_OUT

MIN_SEEDS_OF_A_BAND = 3
"""The interval of two seeds is 12.7 standard errors to each side: too wide to show."""
MAX_BANDS = 6
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")
STYLE: Any = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "figure.dpi": 150,
    "figure.constrained_layout.w_pad": 0.09,
    "figure.constrained_layout.h_pad": 0.09,
    "text.parse_math": False,  # labels come from files: a dollar is just a dollar
}
MAX_HALF_LABEL = 85
"""Characters per label below which two labels fit side by side in the legend."""
PANELS: tuple[tuple[str, Axis, str, str, str], ...] = (
    (HELD_OUT, "step", "Held-out accuracy by step", "step", "accuracy"),
    (HELD_OUT, "seconds", "Held-out accuracy by time", "seconds of training", "accuracy"),
    (HELD_OUT, "trained_tokens", "Held-out accuracy by data", "completion tokens trained on", "accuracy"),
    ("reward", "step", "Reward", "step", "mean reward of the batch"),
    ("completion_length", "step", "Completion length", "step", "mean tokens per completion"),
    ("staleness_mean", "step", "Staleness", "step", "mean staleness, versions"),
)


def require_matplotlib() -> None:
    """Raise before the work starts if matplotlib is missing, not when the figure is drawn."""
    try:
        import matplotlib  # noqa: F401 - is it installed?
    except ImportError:
        raise FreerunError(
            "figures need matplotlib, which is not installed; pip install 'freerun[plots]'"
        ) from None


@contextmanager
def _figure(path: Path, width: float, height: float) -> Iterator[Any]:
    """A figure in our style, saved at the end of the block; no global state, no window."""
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        figure.savefig(path)


def draw_comparison(groups: Sequence[RunGroup], path: Path) -> None:
    """Six panels: accuracy over each axis, and metrics of training."""
    legend_inches = 0.25 * len(groups) + 0.1
    with _figure(path, 11, 6.2 + legend_inches) as figure:
        panels = figure.subplots(2, 3)
        handles: list[Any] = []
        for panel, (metric, axis, title, x_label, y_label) in zip(panels.flat, PANELS, strict=True):
            lines = _draw_panel(panel, groups, metric, axis)
            panel.set(title=title, xlabel=x_label, ylabel=y_label)
            handles = handles or lines
        labels = [_legend(group, has_band=_has_band(group, len(groups))) for group in groups]
        num_columns = 2 if len(groups) > 3 and max(map(len, labels)) < MAX_HALF_LABEL else 1
        figure.legend(handles, labels, loc="outside lower left", ncols=num_columns)


def _has_band(group: RunGroup, num_groups: int) -> bool:
    return len(group.by_seed) >= MIN_SEEDS_OF_A_BAND and num_groups <= MAX_BANDS


def _legend(group: RunGroup, *, has_band: bool) -> str:
    num_seeds = len(group.by_seed)
    what = f"{num_seeds} seeds: mean{' and 95 % interval' if has_band else ''}" if num_seeds > 1 else "1 seed"
    # matplotlib hides labels that begin with an underscore.
    return f"{' ' if group.label.startswith('_') else ''}{group.label}   ({what})"


def _draw_panel(panel: Any, groups: Sequence[RunGroup], metric: str, axis: Axis) -> list[Any]:
    """One curve per group; returns their handles for the legend."""
    is_accuracy = metric == HELD_OUT
    handles = []
    lowest, highest = math.inf, -math.inf
    for index, group in enumerate(groups):
        series = [record.series(metric) for record in group.records]
        seeds = [record.seed for record in group.records]
        curve = mean_curve(series, axis, bin_size=1 if is_accuracy else bin_size_for(series), seeds=seeds)
        handles.append(_draw_curve(panel, curve, index, has_band=_has_band(group, len(groups))))
        values = [point.value for points in series for point in points] if is_accuracy else []
        values += curve.mean.tolist() if curve else []
        lowest, highest = min([lowest, *values]), max([highest, *values])
    if lowest < math.inf:
        # Scaled to the values, not the bands: the band of a few seeds can be many times wider than the curves.
        margin = 0.12 * (highest - lowest) or 0.1
        bounds = (lowest - margin, highest + margin)
        panel.set_ylim(_within_shares(*bounds) if is_accuracy else bounds)
    if is_accuracy:
        panel.yaxis.set_major_formatter(_percent)
    if axis == "step":
        panel.xaxis.get_major_locator().set_params(integer=True)
    if axis == "trained_tokens":
        panel.xaxis.set_major_formatter(_thousands)
    return handles


def _draw_curve(panel: Any, curve: Curve | None, index: int, *, has_band: bool) -> Any:
    look = {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}
    if curve is None:
        return panel.plot([], [], **look)[0]
    if has_band:
        panel.fill_between(curve.x, curve.low, curve.high, color=look["color"], alpha=0.18, linewidth=0)
    marker = MARKERS[index % len(MARKERS)] if len(curve.x) == 1 else ""  # a single point is not visible as a line
    return panel.plot(curve.x, curve.mean, marker=marker, linewidth=1.8, **look)[0]


def _thousands(value: float, position: object) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"


def _percent(value: float, position: object) -> str:
    return f"{100 * value:g} %"


def _within_shares(low: float, high: float) -> tuple[float, float]:
    """Limits for an axis of shares; the interval of few seeds may go beyond 0 or 1."""
    return max(low, -0.02), min(high, 1.02)


def draw_by_value(
    path: Path,
    key: str,
    values: Sequence[str],
    lines: dict[str, list[GroupSummary]],
    *,
    before_training: float,
) -> None:
    """Accuracy and throughput against the values of a key; each line has a summary for each value."""
    legend_inches = 0.25 * -(-len(lines) // 2)
    with _figure(path, 9.6, 4.0 + legend_inches) as figure:
        left, right = figure.subplots(1, 2)
        _draw_lines(left, values, {label: [s["final_accuracy"] for s in line] for label, line in lines.items()})
        _draw_lines(
            right, values, {label: [s["tokens_per_second"] for s in line] for label, line in lines.items()}
        )
        # As text: drawn as a line, far below, it would squeeze the rest.
        before = f" (before: {percent(before_training)})" if math.isfinite(before_training) else ""
        left.set(title=f"Held-out accuracy after training{before}", ylabel="accuracy", xlabel=key)
        left.set_ylim(_within_shares(*left.get_ylim()))
        left.yaxis.set_major_formatter(_percent)
        right.set(title="Throughput", ylabel="trained completion tokens per second", xlabel=key)
        right.set_ylim(bottom=0)
        right.yaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")
        handles, labels = left.get_legend_handles_labels()
        labels = [f"{label} (mean and 95 % interval)".strip() for label in labels]
        figure.legend(handles, labels, loc="outside lower center", ncols=2)


def _draw_lines(panel: Any, values: Sequence[str], lines: dict[str, list[Estimate]]) -> None:
    """Values are evenly spaced categories. Lines are shifted a little to keep their bars apart."""
    panel.set_xticks(range(len(values)), values)
    panel.set_xlim(-0.5, len(values) - 0.5)
    panel.grid(axis="x", visible=False)
    for index, (label, estimates) in enumerate(lines.items()):
        shift = min(0.12, 0.6 / len(lines)) * (index - (len(lines) - 1) / 2)
        known = [(place + shift, e) for place, e in enumerate(estimates) if math.isfinite(e.value)]
        errors = [[e.value - e.low, e.high - e.value] if e.has_interval else [0.0, 0.0] for _, e in known]
        panel.errorbar(
            [x for x, _ in known],
            [e.value for _, e in known],
            yerr=[[low for low, _ in errors], [high for _, high in errors]],
            label=f" {label}",
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            linestyle=DASHES[index % len(DASHES)],
            markersize=4.5,
            linewidth=1.6,
            elinewidth=1.3,
            capsize=4,
        )
