"""The chart in the README, drawn from the recorded results: one bar per comparison, with its range.

It is drawn twice, for light and for dark pages. Text stays text, which keeps the file small and searchable.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness import RESULTS, ROOT, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = ROOT / "docs/figures"


@dataclass(frozen=True)
class Bar:
    """One comparison: where it is recorded and what the chart calls it."""

    file: str
    claim: str
    """Part of the claim's text, as is `peer`; together they match one result of the file."""
    peer: str
    label: str
    versus: str


BARS = (
    Bar(
        "euclid",
        "end-to-end",
        "synchronous",
        "whole run, Euclid, tiny model",
        "our best synchronous setup",
    ),
    Bar("euclid", "end-to-end", "overlap", "whole run, Euclid, tiny model", "one step of overlap"),
    Bar("smollm2", "end-to-end", "synchronous", "whole run, SmolLM2-135M", "our best synchronous setup"),
    Bar("trl", "64 tokens, trained", "GRPOTrainer", "RL step, up to 64 tokens", "TRL GRPOTrainer"),
    Bar("trl", "256 tokens, trained", "GRPOTrainer", "RL step, up to 256 tokens", "TRL GRPOTrainer"),
    Bar("generation_vllm", "64 sequences", "vLLM", "generation, 64 sequences", "vLLM on CPU"),
    Bar("generation_transformers", "", "generate", "generation, long-tailed lengths", "transformers generate"),
    Bar("training", "SmolLM2", "padded", "training, long-tailed lengths", "padded Hugging Face"),
    Bar("interrupts", "trained tokens", "", "interruptible generation", "draining at each update"),
)


@dataclass(frozen=True)
class Colours:
    background: str
    text: str
    muted: str
    bar: str
    grid: str


THEMES = {
    "light": Colours("#ffffff", "#1f2328", "#59636e", "#54aeff", "#d1d9e0"),
    "dark": Colours("#0d1117", "#f0f6fc", "#9198a1", "#1f6feb", "#3d444d"),
}


def result_of(bar: Bar) -> dict[str, Any]:
    """The recorded result that a bar shows."""
    results = json.loads((RESULTS / f"{bar.file}.json").read_text())["results"]
    [result] = [each for each in results if bar.claim in each["claim"] and bar.peer in each["peer"]]
    return dict(result)


def write_chart(directory: Path = FIGURES) -> None:
    from matplotlib import rc_context

    for theme, colours in THEMES.items():
        # A fixed salt and no date: the same results give the same file.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "speed", "font.family": "sans-serif"}):
            path = directory / f"speed-{theme}.svg"
            draw(colours).savefig(path, metadata={"Date": None})
        show(f"{path} has {len(BARS)} bars")


def draw(colours: Colours) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 0.44 * len(BARS) + 0.9), facecolor=colours.background)
    axes = figure.add_axes((0.34, 0.07, 0.645, 0.85), facecolor=colours.background)
    for row, bar in enumerate(reversed(BARS)):
        _draw_bar(axes, row, bar, colours)
    axes.set_title(
        "throughput relative to the alternative: median and range", color=colours.text, fontsize=10, loc="left"
    )
    axes.set_xlim(0, max(result_of(bar)["range"][1] for bar in BARS) + 0.6)
    axes.axvline(1, color=colours.muted, linewidth=1, linestyle=(0, (4, 3)))
    axes.xaxis.set_major_formatter("{x:.0f}x")
    axes.tick_params(colors=colours.muted, length=0, labelsize=9)
    axes.set_yticks([])
    axes.grid(axis="x", color=colours.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def _draw_bar(axes: Axes, row: int, bar: Bar, colours: Colours) -> None:
    result = result_of(bar)
    median, (low, high) = result["median"], result["range"]
    axes.barh(row, median, height=0.56, color=colours.bar)
    axes.plot([low, high], [row, row], color=colours.text, linewidth=1.4, solid_capstyle="butt")
    axes.text(max(high, median) + 0.08, row, f"{median:.1f}x", va="center", color=colours.text, fontsize=10)
    for offset, text, colour, size in (
        (0.17, bar.label, colours.text, 9.5),
        (-0.22, f"vs. {bar.versus}", colours.muted, 8.5),
    ):
        place = axes.get_yaxis_transform()
        axes.text(
            -0.015, row + offset, text, transform=place, ha="right", va="center", color=colour, fontsize=size
        )
