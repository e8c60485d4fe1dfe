"""The table of all claims, from the recorded results."""

import json
from typing import Any

from bench.harness import RESULTS, show

HEADER = """# Speed

Both sides of a ratio were measured alternately, on the same work and the same cores, by the command in the row.
Figures are the median (range, n repetitions). `python -m bench` measures it all again. `python -m bench --table`
rewrites this page and the chart from [speed/](speed/): every single measurement, the settings and the machine.

| claim | vs. | measured | target | stretch | | command |
|---|---|---|---|---|---|---|
"""


def write_table() -> None:
    rows: list[str] = []
    notes: list[str] = []
    for path in sorted(RESULTS.glob("*.json")):
        document = json.loads(path.read_text())
        for result in document.get("results", ()):
            mark = ""
            if note := result["note"]:
                if note not in notes:
                    notes.append(note)
                mark = f" [{notes.index(note) + 1}]"
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
    repetitions = f"n = {len(result['ours'])}"
    measured = f"**{figure(result['median'])}** ({figure(low)} to {figure(high)}, {repetitions}){mark}"
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
