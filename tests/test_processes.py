"""Child processes: they answer, they end, they say how, and they never outlive their parent."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from freerun.errors import WorkerError
from freerun.processes.child import Child
from freerun.processes.frames import FrameStream, MessageDecoder, to_frame

PATIENCE_SECONDS = 30.0

WORKER = """
import os, re, signal, subprocess, sys, threading, time
import msgspec
from freerun.processes.parent import run_worker

class Do(msgspec.Struct, tag="do"):
    what: str
    payload: bytes = b""

class Did(msgspec.Struct, tag="did"):
    what: str
    payload: bytes = b""

def serve(parent):
    parent.send(Did("started"))
    while True:
        message = parent.receive(3600)
        if message is None:
            continue
        if message.what == "return":
            parent.send(Did("last words", b"x" * 1_000_000))
            return
        actions.get(message.what, lambda p, m: p.send(Did(m.what, m.payload)))(parent, message)

def flood(parent, message):
    while True:
        parent.send(Did("flood", b"x" * 1_000_000))
        time.sleep(0.01)

def fork(parent, message):
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    parent.send(Did(str(pid)))

def run(arguments, **options):
    return lambda parent, message: parent.send(Did(str(subprocess.Popen(arguments, **options).pid)))

def terminate(parent, message):
    program = subprocess.Popen(["sleep", "1000"])
    program.terminate()
    parent.send(Did(str(program.wait())))

def fail(parent, message):
    raise RuntimeError("the reason it failed")

def placement(parent, message):
    parent.send(Did(str(os.sched_getaffinity(0)) + os.environ["OMP_NUM_THREADS"]))

actions = {
    "busy": lambda p, m: re.match(r"(a+)+$", "a" * 60 + "b"),  # a loop in C that never releases the GIL
    "stopped": lambda p, m: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda p, m: time.sleep(1000),
    "flood": flood,
    "fork": fork,
    "new session": run(["sleep", "1000"], start_new_session=True),
    "terminate": terminate,
    "fail": fail,
    "exit 7": lambda p, m: os._exit(7),
    "real-time signal": lambda p, m: os.kill(os.getpid(), 40),
    "unsendable": lambda p, m: p.send(object()),
    "garbage": lambda p, m: p.send({"type": "nonsense"}),
    "placement": placement,
}

if __name__ == "__main__":
    run_worker(Do, serve)
"""


class Do(msgspec.Struct, tag="do"):
    what: str
    payload: bytes = b""


class Did(msgspec.Struct, tag="did"):
    what: str
    payload: bytes = b""


class Unknown(msgspec.Struct, tag="unknown"):
    what: str = ""


@pytest.fixture(autouse=True)
def _worker_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "the_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def is_running(pid: int) -> bool:
    """A zombie whose new parent has not looked yet does not run any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_ends(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still running"
        time.sleep(0.02)


def with_child(tmp_path: Path, act: Callable[[Child[Did]], Awaitable[None]], **options: object) -> None:
    """Run `act` against a started worker, and leave nothing behind."""

    async def main() -> None:
        child: Child[Did] = await Child.start(
            "worker-0", "the_worker", receives=Did, log_path=tmp_path / "logs" / "worker-0.log", **options
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await child.receive() == Did("started")
                await act(child)
        finally:
            child.kill()
            await child.wait(PATIENCE_SECONDS)
        assert not is_running(child.pid)

    asyncio.run(main())


def test_a_child_echoes_messages_in_order(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        for index in range(200):
            child.send(Do(f"echo {index}"))
        assert [(await child.receive()).what for _ in range(200)] == [f"echo {index}" for index in range(200)]

    with_child(tmp_path, act)


def test_big_frames_survive_both_ways(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        payload = np.random.default_rng(0).bytes(30_000_000)
        child.send(Do("echo", payload))
        child.send(Do("after"))
        assert (await child.receive()).payload == payload
        assert (await child.receive()).what == "after"

    with_child(tmp_path, act)


def test_what_was_sent_before_the_end_arrives(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        child.send(Do("return"))
        assert len((await child.receive()).payload) == 1_000_000
        assert await child.receive() is None
        assert await child.wait(PATIENCE_SECONDS) == 0

    with_child(tmp_path, act)


def test_a_child_stays_on_its_cores_with_its_threads(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))

    async def act(child: Child[Did]) -> None:
        child.send(Do("placement"))
        assert (await child.receive()).what == f"{ {core} }" + "3"

    with_child(tmp_path, act, cores=[core], num_threads=3)


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("exit 7", "exited with status 7"),
        ("real-time signal", "was killed by signal 40"),
        ("fail", "exited with status 1; its log .*Traceback.*RuntimeError: the reason it failed"),
        ("unsendable", "exited with status 1; its log .*cannot send a object"),
    ],
)
def test_the_end_is_described_with_status_and_traceback(tmp_path: Path, what: str, how: str) -> None:
    async def act(child: Child[Did]) -> None:
        child.send(Do(what))
        assert await child.receive() is None
        await child.wait(PATIENCE_SECONDS)
        description = child.describe_end().replace("\n", " ")
        with pytest.raises(WorkerError, match=rf"worker-0 \(pid {child.pid}\) {how}"):
            raise WorkerError(description)

    with_child(tmp_path, act)


def test_a_killed_child_is_described_by_its_signal(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        assert "is still alive" in child.describe_end()
        os.kill(child.pid, signal.SIGKILL)
        assert await child.receive() is None
        await child.wait(PATIENCE_SECONDS)
        assert "was killed by SIGKILL" in child.describe_end()

    with_child(tmp_path, act)


def test_a_successor_does_not_quote_its_predecessors_log(tmp_path: Path) -> None:
    async def fail(child: Child[Did]) -> None:
        child.send(Do("fail"))
        assert await child.receive() is None

    async def exit_quietly(child: Child[Did]) -> None:
        child.send(Do("exit 7"))
        assert await child.receive() is None
        await child.wait(PATIENCE_SECONDS)
        assert child.describe_end().endswith("exited with status 7")

    with_child(tmp_path, fail)
    with_child(tmp_path, exit_quietly)


def test_a_message_of_the_wrong_type_from_the_child_is_an_error(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        child.send(Do("garbage"))
        with pytest.raises(WorkerError, match=r"none of the expected: .*nonsense"):
            await child.receive()

    with_child(tmp_path, act)


def test_a_message_of_the_wrong_type_to_the_child_ends_it_with_the_reason(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        child.send(Unknown())
        assert await child.receive() is None
        await child.wait(PATIENCE_SECONDS)
        assert "none of the expected" in child.describe_end()

    with_child(tmp_path, act)


def test_a_message_that_cannot_be_encoded_raises_at_its_sender(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        with pytest.raises(NotImplementedError, match="cannot send a object"):
            child.send(object())

    with_child(tmp_path, act)


def test_sending_to_a_dead_child_is_no_error(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        os.kill(child.pid, signal.SIGKILL)
        await child.wait(PATIENCE_SECONDS)
        child.send(Do("echo"))
        await asyncio.sleep(0)
        child.send(Do("echo"))
        assert await child.receive() is None
        child.kill()
        child.kill()

    with_child(tmp_path, act)


def test_a_cancelled_read_in_the_middle_of_a_frame_loses_nothing() -> None:
    async def main() -> None:
        stream = asyncio.StreamReader()
        frames = FrameStream(stream)
        frame = to_frame(Did("whole"))
        stream.feed_data(frame[:6])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await frames.read()
        stream.feed_data(frame[6:] + to_frame(Did("next")))
        decoder: MessageDecoder[Did] = MessageDecoder(Did)
        assert [decoder.decode(await frames.read() or b"") for _ in range(2)] == [Did("whole"), Did("next")]

    asyncio.run(main())


def test_a_frame_cut_short_means_the_other_side_is_gone_and_a_monstrous_one_is_an_error() -> None:
    async def read(data: bytes) -> bytes | None:
        stream = asyncio.StreamReader()
        stream.feed_data(data)
        stream.feed_eof()
        return await FrameStream(stream).read()

    assert asyncio.run(read(b"")) is None
    assert asyncio.run(read(b"\0\0")) is None
    assert asyncio.run(read(to_frame(Did("cut"))[:-1])) is None
    with pytest.raises(WorkerError, match="received a frame of 4294967295 bytes, over the limit"):
        asyncio.run(read(b"\xff\xff\xff\xff"))


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
        started.append(int((await child.receive()).what))
        assert is_running(started[0])

    with_child(tmp_path, act)
    assert_ends(started[0])


def test_the_death_of_a_child_is_noticed_though_its_own_child_holds_the_socket(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        child.send(Do("fork"))
        grandchild = int((await child.receive()).what)
        os.kill(child.pid, signal.SIGKILL)
        assert await child.receive() is None
        assert_ends(grandchild)

    with_child(tmp_path, act)


def test_a_worker_ignores_sigterm_but_programs_it_starts_do_not(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        os.killpg(child.pid, signal.SIGTERM)
        os.killpg(child.pid, signal.SIGINT)
        child.send(Do("terminate"))
        assert (await child.receive()).what == str(-signal.SIGTERM)

    with_child(tmp_path, act)


def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    async def main() -> None:
        task = asyncio.create_task(
            Child.start("worker-0", "the_worker", receives=Did, log_path=tmp_path / "worker-0.log")
        )
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        assert not any("the_worker" in Path(f"/proc/{pid}/cmdline").read_text() for pid in children)

    asyncio.run(main())


CONTROLLER = """
    import asyncio, sys, time
    from pathlib import Path
    sys.path.insert(0, {test_directory!r})
    from test_processes import Child, Did, Do

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
        test_directory=str(Path(__file__).parent), log_path=str(tmp_path / "worker-0.log"), what=what
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
