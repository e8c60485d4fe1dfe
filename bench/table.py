"""The table of all claims, from the results that are there."""

from __future__ import annotations

import json
from typing import Any

from bench.harness import RESULTS, show

HEADER = """# Speed

Each ratio was measured side by side, in turns, on the same work and the same cores, by the command in its row;
what has no other side was measured as often. The figure is the median, the range is over the turns.
`python -m bench` measures everything again and rewrites this page from the files in [speed/](speed/), which have
each single figure, the settings and the machine.

| claim | against | measured | at least | aim | | command |
|---|---|---|---|---|---|---|
"""


def write_table() -> None:
    rows, notes = [], []
    for path in sorted(RESULTS.glob("*.json")):
        document = json.loads(path.read_text())
        for result in document.get("results", ()):
            mark = ""
            if result["note"]:
                notes.append(result["note"])
                mark = f" [{len(notes)}]"
            rows.append(_row(result, document["command"], mark))
    lines = [HEADER.rstrip("\n"), *rows, ""]
    lines += [f"{number}. {note}" for number, note in enumerate(notes, start=1)]
    page = RESULTS.parent / "speed.md"
    page.write_text("\n".join(lines).rstrip() + "\n")
    show(f"{page} has {len(rows)} rows")


def _row(result: dict[str, Any], command: str, mark: str) -> str:
    def figure(value: float) -> str:
        return f"{value:#.3g}{result['unit']}" if value < 100 else f"{value:,.0f}{result['unit']}"

    low, high = result["range"]
    measured = f"**{figure(result['median'])}** ({figure(low)} to {figure(high)}){mark}"
    bound = "at most " if result["lower_is_better"] else ""
    aim = figure(result["aim"]) if result["aim"] else ""
    cells = [
        result["claim"],
        result["peer"],
        measured,
        bound + figure(result["at_least"]),
        aim,
        "met" if result["is_met"] else "not met",
        f"`{command}`",
    ]
    return f"| {' | '.join(cells)} |"
