"""A controller that was stopped and continued takes nobody's silence for a fault."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from grader_pools import RIGHT, ask, eventually, make_pool

from freerun.config.recipe import RuntimeConfig
from freerun.controller.stall import wait_while_moving
from freerun.errors import WorkerError
from freerun.processes.frames import Alive
from freerun.processes.local import Child
from freerun.processes.patience import awake_clock, within
from freerun.simulation.virtual_time import run_in_virtual_time, stand_still
from freerun.types import Doing, encode
from freerun.workers.messages import FromTrainer, Progress
from freerun.workers.trainer_client import TrainerClient


class FakeProcess:
    """Satisfies what `Child` uses of a `WorkerProcess`; says once a second that it is alive."""

    name, pid = "worker-0", 1

    def __init__(self) -> None:
        self.is_alive = True
        self.bodies: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.written: list[bytes] = []
        self.beats = True
        self._beat()

    def _beat(self) -> None:
        if self.beats:
            self.say(Alive())
        asyncio.get_running_loop().call_later(1.0, self._beat)

    def say(self, message: msgspec.Struct) -> None:
        self.bodies.put_nowait(encode(message))

    def write(self, frame: bytes) -> None:
        self.written.append(frame)

    async def read(self) -> bytes | None:
        # What a stopped process was sent is read a turn after its timers have fired.
        await asyncio.sleep(0)
        return await self.bodies.get()

    def kill(self) -> None:
        self.is_alive = False
        self.bodies.put_nowait(None)

    async def wait(self, timeout_seconds: float) -> int | None:
        return None

    def describe_end(self) -> str:
        return "worker-0 was killed"


def test_time_in_which_the_loop_stood_still_is_not_awake() -> None:
    async def main() -> None:
        clock = awake_clock()
        await asyncio.sleep(10)
        assert clock.time() == pytest.approx(10)
        stand_still(1000)
        assert clock.time() == pytest.approx(10)
        await asyncio.sleep(5)
        assert clock.time() == pytest.approx(15)

    run_in_virtual_time(main())


def test_a_wait_that_was_stopped_has_the_rest_of_its_time() -> None:
    async def main() -> None:
        answer: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        loop.call_later(9, stand_still, 100)
        loop.call_later(109.5, answer.put_nowait, "in time")
        assert await within(10, answer.get) == "in time"
        with pytest.raises(TimeoutError):
            await within(10, answer.get)

    run_in_virtual_time(main())


def with_trainer(act: Callable[[TrainerClient, FakeProcess], Awaitable[None]]) -> None:
    async def main() -> None:
        process = FakeProcess()
        rank: Child[FromTrainer] = Child(process, FromTrainer)  # type: ignore[arg-type]
        config = RuntimeConfig(silence_seconds=30, stall_seconds=300)
        trainer = TrainerClient([rank], config=config, on_progress=lambda doing: None)
        try:
            await act(trainer, process)
        finally:
            await trainer.close()

    run_in_virtual_time(main())


@pytest.mark.parametrize("seconds", [35, 4000])
def test_a_trainer_is_not_silent_because_the_controller_was_stopped(seconds: float) -> None:
    async def act(trainer: TrainerClient, process: FakeProcess) -> None:
        step = asyncio.ensure_future(trainer.step([]))
        for _ in range(5):
            await asyncio.sleep(7.3)
            stand_still(seconds)
        await asyncio.sleep(7.3)
        process.say(Progress(doing=Doing("training")))
        await asyncio.sleep(7.3)
        assert process.is_alive
        step.cancel()

    with_trainer(act)


def test_a_trainer_that_is_silent_is_noticed_though_the_controller_was_stopped() -> None:
    async def act(trainer: TrainerClient, process: FakeProcess) -> None:
        process.beats = False
        stand_still(100)
        with pytest.raises(WorkerError, match="the trainer fell silent for 30 s"):
            await asyncio.wait_for(trainer.step([]), timeout=40)

    with_trainer(act)


class StoppableLoop(asyncio.SelectorEventLoop):
    """Real time and real processes, in a process that can be stopped."""

    stopped_seconds = 0.0

    def time(self) -> float:
        return super().time() + self.stopped_seconds


def test_a_grade_is_not_late_because_the_controller_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slow_task.py").write_text(
        "import pathlib, time\n\n"
        "def grade(prompt, completion, answer):\n"
        "    pathlib.Path('begun').touch()\n"
        "    while not pathlib.Path('go').exists():\n"
        "        time.sleep(0.01)\n"
        "    return True\n"
    )
    deaths: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StoppableLoop)
        pool = make_pool(deaths=deaths, grader="slow_task:grade", timeout_seconds=60.0, num_workers=1)
        await pool.start()
        try:
            grade = asyncio.ensure_future(ask(pool, "42"))
            await eventually(Path("begun").exists)
            loop.stopped_seconds += 1000
            await asyncio.sleep(0.1)
            Path("go").touch()
            assert await grade == RIGHT
        finally:
            await pool.close()

    with asyncio.Runner(loop_factory=StoppableLoop) as runner:
        runner.run(main())
    assert deaths == []


def test_rollouts_do_not_stall_because_the_controller_was_stopped() -> None:
    async def main() -> None:
        wake = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.call_later(200, stand_still, 1000)
        loop.call_later(1250, wake.set)
        assert await wait_while_moving(wake, lambda: 0, stall_seconds=300)

    run_in_virtual_time(main())


def test_a_stall_counts_from_the_last_progress() -> None:
    async def main() -> None:
        clock = asyncio.get_running_loop().time
        assert not await wait_while_moving(asyncio.Event(), lambda: min(clock(), 40), stall_seconds=300)
        assert 340 <= clock() < 345

    run_in_virtual_time(main())
