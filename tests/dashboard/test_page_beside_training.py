"""What is done to a run's page does nothing to the run."""

import base64
import contextlib
import gzip
import http.client
import re
import signal
import socket
from functools import partial
from pathlib import Path

import psutil
import pytest
from page_links import answers, ask, connect, is_closed, port_of, until, wait_for_link
from process_table import is_running
from tiny_runs import Run, are_gone, assert_exactly_once, make_run

from freerun.cli.main import main
from freerun.dashboard.view import page_of
from freerun.events.page_link import LINK_FILE
from freerun.session.page import PAGE_WORKER

MANY = ("--train.num_steps", "100000", "--checkpoint.every_steps", "100000", "--eval.every_steps", "100000")
SECRETS = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY")
CANARY = "canary-8e4f"
MAX_GROWTH_BYTES = 50_000_000


@pytest.mark.slow
def test_a_page_that_is_killed_stopped_and_flooded_leaves_the_run_and_its_ledger_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, CANARY)
    run = Run(make_run(tmp_path), *MANY, "--page.port", "0")
    directory = run.reader_path
    link = wait_for_link(directory)
    assert ask(link)[0] == 200
    run.until_step(2)
    [page] = run.workers(PAGE_WORKER)
    before = memory_bytes(page.pid, "VmRSS")
    flood = [connect(link, "/stream") for _ in range(100)]
    slow = [socket.create_connection(("127.0.0.1", port_of(link))) for _ in range(20)]
    for connection in slow:
        with contextlib.suppress(OSError):  # beyond the limit it may be closed already
            connection.sendall(b"GET / HTTP/1.1\r\nHost: local")
    _send_body(link)
    assert 200 in [_status(stream) for stream in flood], "all have been looked at"
    assert memory_bytes(page.pid, "VmHWM") - before < MAX_GROWTH_BYTES, "the most it had at any time"
    page.kill()
    run.until_step(run.num_steps + 5)
    for stream in flood:
        stream.close()
    for connection in slow:
        connection.close()
    until(lambda: answers(link), "the page's successor")
    [page] = run.workers(PAGE_WORKER)
    page.suspend()
    run.until_step(run.num_steps + 5)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.output
    assert are_gone([page])
    assert_exactly_once(run, num_steps=run.num_steps)
    assert "died" not in run.output
    assert "page  http://127.0.0.1:" in run.output
    assert not (directory / LINK_FILE).exists()
    assert not (directory / "store.sqlite-wal").exists(), "the page has let go of the store"
    assert main(["report", str(directory), "--out", str(directory / "report.html")]) == 0
    for secret in (link.rpartition("=")[2], CANARY):
        assert_is_nowhere(secret, directory)
        assert secret not in run.output


@pytest.mark.slow
def test_kill_9_of_training_runs_leaves_no_page(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    for number in range(3):
        run = Run(recipe, *MANY, "--page.port", "0", "--run.name", f"killed-{number}")
        directory = recipe.parent / "runs" / f"killed-{number}"
        link = wait_for_link(directory)
        follower = connect(link, "/stream")
        assert follower.getresponse().readline().startswith(b"id: ")
        [page] = run.workers(PAGE_WORKER)
        run.process.kill()
        run.wait()
        until(partial(_has_ended, page), "the page to end")
        until(partial(is_closed, link), "the port to be closed")
        assert page_of(directory) == "", "the file that is left behind names a page that is gone"
        follower.close()


def assert_is_nowhere(secret: str, directory: Path) -> None:
    """Neither in the store nor in a log, a checkpoint or a report."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert {"page.log", "trainer.log", "store.sqlite", "report.html"} <= {path.name for path in files}
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    packed = re.findall(r'id="data">([A-Za-z0-9+/=]*)<', (directory / "report.html").read_text())
    assert len(packed) == 1
    assert secret.encode() not in gzip.decompress(base64.b64decode(packed[0]))


def _has_ended(process: psutil.Process) -> bool:
    return not is_running(process.pid)


def memory_bytes(pid: int, counter: str) -> int:
    """VmRSS, what a process has in memory now, or VmHWM, the most that it has ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [found] = [line.split()[1] for line in lines if line.startswith(f"{counter}:")]
    return int(found) * 1024


def _status(stream: http.client.HTTPConnection) -> int:
    """How the page answered; 0 if it closed the connection."""
    try:
        return stream.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0


def _send_body(link: str) -> None:
    with socket.create_connection(("127.0.0.1", port_of(link))) as connection, contextlib.suppress(OSError):
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 67108864\r\n\r\n")
        connection.sendall(bytes(64 << 20))
