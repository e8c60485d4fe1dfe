"""Child processes end when they are killed, with all they started, and never outlive their parent."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from child_processes import (
    PATIENCE_SECONDS,
    assert_ends,
    hear,
    let_children_find_the_worker,
    with_child,
)
from process_table import children_running, is_running
from the_worker import Did, Do

from freerun.processes.local import Child


@pytest.fixture(autouse=True)
def _worker_module(monkeypatch: pytest.MonkeyPatch) -> None:
    let_children_find_the_worker(monkeypatch)


@pytest.mark.parametrize("what", ["busy", "stopped", "sleep", "flood"])
def test_kill_ends_a_child_whatever_it_is_doing(tmp_path: Path, what: str) -> None:
    async def act(child: Child[Did]) -> None:
        child.send(Do(what))
        await asyncio.sleep(0.2)
        assert child.is_alive

    with_child(tmp_path, act)


@pytest.mark.parametrize("what", ["fork", "new session"])
def test_killing_a_child_ends_what_it_started(tmp_path: Path, what: str) -> None:
    started: list[int] = []

    async def act(child: Child[Did]) -> None:
        child.send(Do(what))
        started.append(int((await hear(child)).what))
        assert is_running(started[0])

    with_child(tmp_path, act)
    assert_ends(started[0])


def test_a_child_that_was_just_killed_is_not_called_alive(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        child.kill()
        assert "was killed" in child.describe_end()
        await child.wait(PATIENCE_SECONDS)
        assert "was killed by SIGKILL" in child.describe_end()
        assert not child.was_taken_away, "it was us"

    with_child(tmp_path, act)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_child_that_somebody_killed_was_taken_away_and_one_that_ended_was_not(
    tmp_path: Path, is_killed: bool
) -> None:
    async def act(child: Child[Did]) -> None:
        assert not child.was_taken_away
        if is_killed:
            os.kill(child.pid, signal.SIGKILL)
        else:
            child.send(Do("return"))
        while await child.receive() is not None:
            pass
        await child.wait(PATIENCE_SECONDS)
        child.kill()
        assert child.was_taken_away == is_killed

    with_child(tmp_path, act)


def test_the_death_of_a_child_is_noticed_though_its_own_child_holds_the_socket(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        child.send(Do("fork"))
        grandchild = int((await hear(child)).what)
        os.kill(child.pid, signal.SIGKILL)
        assert await child.receive() is None
        assert_ends(grandchild)

    with_child(tmp_path, act)


def test_a_worker_ignores_sigterm_but_programs_it_starts_do_not(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        os.killpg(child.pid, signal.SIGTERM)
        os.killpg(child.pid, signal.SIGINT)
        child.send(Do("terminate"))
        assert (await hear(child)).what == str(-signal.SIGTERM)

    with_child(tmp_path, act)


def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    async def main() -> None:
        task: asyncio.Task[Child[Did]] = asyncio.create_task(
            Child.start("worker-0", "the_worker", receives=Did, log_path=tmp_path / "worker-0.log")
        )
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not children_running("the_worker")

    asyncio.run(main())


CONTROLLER = """
    import asyncio, sys, time
    from pathlib import Path
    sys.path.insert(0, {test_directory!r})
    from child_processes import Child
    from the_worker import Did, Do

    async def main():
        child = await Child.start("worker-0", "the_worker", receives=Did, log_path=Path({log_path!r}))
        await child.receive()
        child.send(Do({what!r}))
        await asyncio.sleep(0.2)
        print(child.pid, flush=True)
        time.sleep(1000)  # reads nothing more

    asyncio.run(main())
"""


@pytest.mark.parametrize("what", ["echo", "busy", "stopped", "sleep", "flood"])
def test_a_child_dies_with_its_parent_killed_by_kill_9(tmp_path: Path, what: str) -> None:
    source = textwrap.dedent(CONTROLLER).format(
        test_directory=str(Path(__file__).parents[1] / "support"),
        log_path=str(tmp_path / "worker-0.log"),
        what=what,
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        child_pid = int(controller.stdout.readline())
        assert is_running(child_pid)
        controller.kill()
        controller.wait()
        assert_ends(child_pid)


def test_a_child_whose_parent_is_already_gone_ends_at_once() -> None:
    # Another pid than its parent's stands for a parent that died while the child was starting.
    source = "import sys; from freerun.processes.parent import run_worker; run_worker(int, lambda parent: None)"
    orphan = subprocess.run(
        [sys.executable, "-c", source, "0", "", str(os.getppid()), "1", ""],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (orphan.returncode, orphan.stderr) == (1, b"")
