"""`freerun view`: the page of a run or of a directory, as a user starts it; and what it prints."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from page_links import ask
from served_pages import ServedPage, write_run
from tiny_runs import Run, make_run

from freerun.cli import train, view
from freerun.cli.main import main
from freerun.errors import EXIT_INTERRUPTED
from freerun.events.events import PageOpened
from freerun.events.page_link import write_link
from freerun.terminal.page_lines import describe_page, ssh_tunnel


@contextmanager
def viewing(*arguments: str) -> Iterator[str]:
    """The link that `freerun view` prints, while it serves."""
    command = [sys.executable, "-m", "freerun.cli.main", "view", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("page  http://127.0.0.1:")
        try:
            yield line.split()[1]
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


def shown(answer: bytes) -> list[str]:
    """The runs that the answer says the page is about."""
    return [run["name"] for run in json.loads(answer)["runs"] if run["is_this"]]


@pytest.mark.slow
def test_a_run_and_a_directory_of_runs_are_served_until_ctrl_c(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs / "first")
    write_run(runs / "second", has_ended=False)
    with viewing(str(runs / "first")) as link:
        assert shown(ask(link, "/api/runs")[1]) == ["first"]
    with viewing(str(runs)) as link:
        assert shown(ask(link, "/api/runs")[1]) == ["second"], "the newest"
        assert shown(ask(link, "/api/runs?run=first")[1]) == ["first"]


@pytest.mark.slow
def test_train_with_view_serves_the_page_of_the_run_after_its_end(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), "--train.num_steps", "1", "--page.port", "0", "--view")
    run.until(lambda: "?token=" in run.output)
    summary, _, link = run.output.rpartition("page  ")
    assert "outcome    finished" in summary
    assert shown(ask(link.strip(), "/api/runs")[1]) == ["tiny"]
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 0


def test_a_run_that_was_interrupted_gives_the_terminal_back(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = iter([EXIT_INTERRUPTED, 0, 1])
    monkeypatch.setattr(train, "start_run", lambda *_, **__: next(codes))
    served: list[Path] = []
    monkeypatch.setattr(view, "serve_until_stopped", lambda runs, run, config: served.append(run))
    assert [main(["train", str(demo), "--view"]) for _ in range(3)] == [EXIT_INTERRUPTED, 0, 1]
    assert served == [Path("runs/demo").absolute()] * 2


def test_a_run_that_serves_its_page_itself_is_not_served_twice(
    page: ServedPage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "runs" / "live", has_ended=False)
    write_link(run, page.link)
    assert main(["view", str(run)]) == 0
    assert capsys.readouterr().out == f"page  {page.link}\n"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("gone", '"{place}" is not a directory; name a run, such as runs/times-tables, or a directory of runs'),
        ("", '"{place}" holds no runs; "freerun train" makes them in runs'),
    ],
)
def test_a_place_without_runs_is_refused(
    tmp_path: Path, place: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = tmp_path / place
    assert main(["view", str(named)]) == 2
    assert capsys.readouterr().err == f"freerun: {message.format(place=named)}\n"


def test_over_ssh_the_tunnel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = PageOpened(seconds=0.0, url="http://127.0.0.1:6161/", is_public=False)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert describe_page(opened, "runs/a", f"{opened.url}?token=t") == "page  http://127.0.0.1:6161/?token=t"
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50000 192.0.2.9 22")
    monkeypatch.setenv("USER", "ada")
    assert describe_page(opened, "runs/a", f"{opened.url}?token=t").splitlines()[1:] == [
        "      on your own machine first: ssh -L 6161:127.0.0.1:6161 ada@192.0.2.9"
    ]
    monkeypatch.setenv("SSH_CONNECTION", "::1 50000 2001:db8::1 2222")
    assert ssh_tunnel("http://[::1]:6162/") == "ssh -p 2222 -L 6162:[::1]:6162 ada@2001:db8::1"


def test_a_log_is_told_the_address_without_the_token() -> None:
    opened = PageOpened(seconds=0.0, url="http://127.0.0.1:6161/", is_public=True)
    line = describe_page(opened, "runs/my run")
    assert re.search(r"http://127.0.0.1:6161/  warning: other machines .*  freerun view 'runs/my run'", line)
    assert "token=" not in line
