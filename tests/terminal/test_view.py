"""Watching a run: where its lines, its live view and its summary appear."""

import io
import os
import re
import time
from contextlib import closing
from pathlib import Path

from rich.console import Console
from watched_run import a_run, an_end

from freerun.terminal.lines import ProgressLines
from freerun.terminal.view import RunView


def a_console(width: int = 120, height: int = 40) -> Console:
    return Console(
        record=True, force_terminal=True, width=width, height=height, file=io.StringIO(), color_system="truecolor"
    )


def test_everything_printed_is_kept_in_a_file_that_grows_with_every_session(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            (tmp_path / "log.txt").open("ab", buffering=0) as file,
            closing(RunView(a_console(), file, directory=tmp_path)) as view,
        ):
            for event in [*a_run(), an_end()]:
                view(event)
    log = (tmp_path / "log.txt").read_text()
    assert log.count("step 12/60  reward 0.80") == 2
    assert log.count("next       freerun eval runs/times-tables") == 2
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  started  run", log)


def test_a_log_on_a_full_disk_is_no_reason_to_end() -> None:
    console = a_console()
    file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115 - the view closes it
    with closing(RunView(console, file, directory=Path("nowhere"))) as view:
        for event in [*a_run(), an_end()]:
            view(event)
    assert view.state.version == 12
    assert "outcome    finished" in console.export_text()


def test_work_without_a_terminal_says_now_and_then_how_far_it_is() -> None:
    seconds = 0.0
    console = Console(file=io.StringIO(), width=80)
    lines = ProgressLines(console, 100, clock=lambda: seconds)
    for done in range(1, 101):
        seconds += 0.5
        lines(done, "prompts evaluated")
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue().splitlines()
    assert len(printed) == 9
    assert re.fullmatch(r"\d\d:\d\d:\d\d  10/100 prompts evaluated  45 s left", printed[0])


def test_a_pipe_gets_lines_with_the_time_and_then_the_summary() -> None:
    console = Console(file=io.StringIO(), width=80)
    nowhere = open(os.devnull, "ab", buffering=0)  # noqa: SIM115 - the view closes it
    with closing(RunView(console, nowhere, directory=Path("nowhere"), now=lambda: "12:00:00")) as view:
        for event in [*a_run(), an_end()]:
            view(event)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert "12:00:00  step 12/60  reward 0.80" in printed
    assert "12:00:00  finished at step 12/60\noutcome    finished\n" in printed


def test_a_terminal_gets_a_live_view_that_draws_by_itself() -> None:
    console = a_console()
    assert isinstance(console.file, io.StringIO)
    nowhere = open(os.devnull, "ab", buffering=0)  # noqa: SIM115 - the view closes it
    with closing(RunView(console, nowhere, directory=Path("nowhere"))) as view:
        for event in a_run():
            view(event)
        while "12/60" not in console.file.getvalue():
            time.sleep(0.05)
    assert "step 12/60  reward" not in console.export_text()
