"""`freerun report`: how long the command takes, how large its file is, and how soon that opens from disk.

Of a run as long as the demo, with its few tokens in a completion, and of the run with a million trajectories.
Of the former also the CPU time of the timeline that `freerun trace` writes.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.harness import ROOT, Result, at_most, show
from bench.page_run import write_run
from bench.page_viewing import APPEARED
from freerun.events.trace import write_trace

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
    return [*rows, _row_of_trace(demo, repetitions)]


def _row_of_trace(run: Path, repetitions: int) -> Result:
    taken = [_trace_seconds(run) for _ in range(repetitions + 1)][1:]
    settings = {"run": "a run like the demo", "steps": DEMO_STEPS}
    return at_most(
        "timeline for Perfetto, CPU time, a run like the demo", 0.1, " s", taken, settings, peer="freerun trace"
    )


def _trace_seconds(run: Path) -> float:
    began = time.process_time()
    num_events = write_trace(run, run / "trace.json")
    seconds = time.process_time() - began
    show(f"  trace of {num_events:,} events in {seconds:.3f} s of CPU")
    return seconds


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
