"""`freerun report`: how long the command takes, how large its file is, and how soon that opens from disk.

Of a run as long as the demo, with its few tokens in a completion, and of the run with a million trajectories.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.harness import ROOT, Result, at_most, show
from bench.page_run import write_run
from bench.page_viewing import APPEARED

DEMO_STEPS, DEMO_GROUPS, DEMO_TOKENS = 45, 8, 8


class Report(NamedTuple):
    seconds: float
    """Of the whole command."""
    megabytes: float
    open_seconds: float
    """From the address of the file to its first heading."""


def rows_of_reports(browser: Any, scratch: Path, large: Path, repetitions: int) -> list[Result]:
    scratch.mkdir()
    demo = scratch / "demo"
    write_run(demo, num_steps=DEMO_STEPS, num_groups=DEMO_GROUPS, num_tokens=DEMO_TOKENS)
    rows = []
    for run, name, most in ((demo, "a run like the demo", 0.5), (large, "a million trajectories", 5.0)):
        made = [_report(browser, run, scratch / f"{run.name}.html") for _ in range(repetitions + 1)][1:]
        figures = (
            ("freerun report", 5.0, " s", [each.seconds for each in made]),
            ("size of the report", most, " MB", [each.megabytes for each in made]),
            ("the report from disk to its first heading", 1.0, " s", [each.open_seconds for each in made]),
        )
        settings = {"run": name, "steps": DEMO_STEPS} if run is demo else {"run": name}
        rows += [
            at_most(f"{claim}, {name},{unit}", limit, unit, ours, settings, peer="freerun report")
            for claim, limit, unit, ours in figures
        ]
    return rows


def _report(browser: Any, run: Path, file: Path) -> Report:
    began = time.perf_counter()
    command = [sys.executable, "-m", "freerun.cli.main", "report", str(run), "--out", str(file)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    written = time.perf_counter()
    page = browser.new_page()
    opening = time.perf_counter()
    page.goto(file.as_uri(), wait_until="commit")
    page.evaluate(APPEARED, ["main h2", ""])
    opened = time.perf_counter()
    page.close()
    report = Report(written - began, file.stat().st_size / 1e6, opened - opening)
    show(f"  {report.seconds:.2f} s, {report.megabytes:.2f} MB, opens in {report.open_seconds:.2f} s")
    return report
