"""Child processes: they answer, and when they have ended they say how."""

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from child_processes import PATIENCE_SECONDS, hear, let_children_find_the_worker, with_child
from process_table import children_running
from the_worker import Did, Do

import freerun
from freerun.errors import WorkerError
from freerun.processes.frames import FrameStream, MessageDecoder, to_frame
from freerun.processes.local import Child


class Unknown(msgspec.Struct, tag="unknown"):
    what: str = ""


@pytest.fixture(autouse=True)
def _worker_module(monkeypatch: pytest.MonkeyPatch) -> None:
    let_children_find_the_worker(monkeypatch)


def test_a_child_echoes_messages_in_order(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        for index in range(200):
            child.send(Do(f"echo {index}"))
        assert [(await hear(child)).what for _ in range(200)] == [f"echo {index}" for index in range(200)]

    with_child(tmp_path, act)


def test_a_child_may_take_its_messages_in_an_event_loop(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        child.send(Do("event loop"))
        for number in range(200):
            child.send(Do(str(number)))
        assert [(await hear(child)).what for _ in range(200)] == [str(number) for number in range(200)]

    with_child(tmp_path, act)


def test_big_frames_survive_both_ways(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        payload = np.random.default_rng(0).bytes(30_000_000)
        child.send(Do("echo", payload))
        child.send(Do("after"))
        assert (await hear(child)).payload == payload
        assert (await hear(child)).what == "after"

    with_child(tmp_path, act)


def test_what_was_sent_before_the_end_arrives(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        child.send(Do("return"))
        assert len((await hear(child)).payload) == 1_000_000
        assert await child.receive() is None
        assert await child.wait(PATIENCE_SECONDS) == 0

    with_child(tmp_path, act)


def test_a_child_stays_on_its_cores_with_its_threads(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))

    async def act(child: Child[Did]) -> None:
        child.send(Do("placement"))
        assert (await hear(child)).what == f"{ {core} }" + "3"

    with_child(tmp_path, act, cores=[core], num_threads=3)


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("exit 7", "exited with status 7"),
        ("real-time signal", "was killed by signal 40"),
        ("fail", "exited with status 1; its log .*Traceback.*RuntimeError: the reason it failed"),
        ("refuse", r"exited with status 1; its log \S+ ends: ModelError: the model is damaged; restore it$"),
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
        with pytest.raises(WorkerError, match=r"unexpected message of .*nonsense"):
            await child.receive()

    with_child(tmp_path, act)


def test_a_message_of_the_wrong_type_to_the_child_ends_it_with_the_reason(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        child.send(Unknown())
        assert await child.receive() is None
        await child.wait(PATIENCE_SECONDS)
        assert "received an unexpected message" in child.describe_end()

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


def test_a_worker_imports_what_its_parent_imports_not_what_lies_in_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("random.py", "msgspec.py", "the_worker.py"):
        (tmp_path / name).write_text("raise ImportError('a file of the user')")
    (tmp_path / "freerun").mkdir()
    (tmp_path / "freerun" / "__init__.py").write_text("raise ImportError('another freerun')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def act(child: Child[Did]) -> None:
        child.send(Do("imports"))
        path, package, random = (await hear(child)).what.splitlines()
        assert path == os.pathsep.join(map(os.path.abspath, sys.path))
        assert package == freerun.__file__
        assert random == os.path.join(os.path.dirname(os.__file__), "random.py")

    with_child(tmp_path, act)


@pytest.mark.parametrize("module", ["freerun", "freerun.cli.main"])
def test_python_m_in_a_users_directory_does_not_import_the_users_files(tmp_path: Path, module: str) -> None:
    for name in ("random.py", "tomllib.py", "rich.py"):
        (tmp_path / name).write_text("raise ImportError('a file of the user')")
    command = [sys.executable, "-m", module, "train", "none.toml"]
    environment = os.environ | {"PYTHONPATH": str(Path(freerun.__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (
        done.stderr
        == 'freerun: config: there is no recipe "none.toml"; "freerun recipes" lists the shipped ones\n'
    )


def test_a_worker_that_cannot_be_started_for_want_of_files_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def start_with(num_files: int) -> str:
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, limits[1]))
        try:
            child: Child[Did] = await Child.start(
                "worker-0", "the_worker", receives=Did, log_path=tmp_path / "worker-0.log"
            )
        except WorkerError as error:
            return str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        child.kill()
        await child.wait(PATIENCE_SECONDS)
        return ""

    async def start_with_more_and_more() -> list[str]:
        errors = []
        num_files = len(os.listdir("/proc/self/fd"))
        while error := await start_with(num_files):
            assert not children_running("the_worker")
            errors.append(error)
            num_files += 1
        return errors

    errors = asyncio.run(start_with_more_and_more())
    assert len(errors) >= 3
    for error in errors:
        assert re.fullmatch(
            r"worker-0 could not be started: too many open files: the limit is .*; raise it with ulimit -n .*",
            error,
        )


def test_a_worker_that_can_start_no_thread_says_so_in_one_line(tmp_path: Path) -> None:
    async def act(child: Child[Did]) -> None:
        child.send(Do("no threads"))
        assert await child.receive() is None
        await child.wait(PATIENCE_SECONDS)
        [_, reason] = child.describe_end().splitlines()
        assert reason.startswith("too many processes and threads: the limit of this user is ")

    with_child(tmp_path, act)
