"""The rollout worker's loop, in this process, with a script in place of the controller."""

from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tiny_models import make_request
from tiny_runs import make_run

from freerun.config.engine import EngineConfig
from freerun.config.lora import LoraConfig
from freerun.model.checkpoint import load_model
from freerun.types import Publication, Request
from freerun.weights.buffers import create_buffers, shared_route
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedMemoryChannel
from freerun.workers.messages import (
    EndSession,
    EngineReady,
    Finished,
    Generate,
    Load,
    Loaded,
    Report,
    StartEngine,
    ToRollout,
)
from freerun.workers.rollout_worker import RolloutWorker


class NothingToDoError(Exception):
    """The script is over and the worker waits for a message."""


class Script:
    """Stands in for `Parent`: gives the messages in turn, None where none has come yet, and keeps the answers."""

    num_threads = 1

    def __init__(self, messages: list[ToRollout | None]) -> None:
        self.sent: list[Any] = []
        self._messages = deque(messages)

    def send(self, message: Any) -> None:
        if not isinstance(message, Report):
            self.sent.append(message)

    def wake(self) -> None:
        pass

    def receive(self, timeout_seconds: float) -> ToRollout | None:
        if self._messages:
            return self._messages.popleft()
        if timeout_seconds > 0:
            raise NothingToDoError
        return None


def start_message(model_directory: Path, buffers: tuple[int, ...], engine: EngineConfig) -> StartEngine:
    return StartEngine(
        model_directory=str(model_directory),
        engine=engine,
        max_sequence_tokens=64,
        seed=0,
        lora=LoraConfig(),
        base_directory="",
        weights=shared_route(buffers),
    )


def test_a_load_that_waits_for_the_last_completion_does_not_wait_for_a_message_too(tmp_path: Path) -> None:
    make_run(tmp_path)
    buffers, model = create_buffers("test"), load_model(tmp_path / "model")
    weights = SharedMemoryChannel(buffers, WeightLayout(model))
    published = []
    for version in range(2):
        published.append(weights.publish(version, model.named_parameters())())
    begun = Generate(requests=(make_request(1, max_completion_tokens=4, vocab_size=8),))
    script = Script([Load(published=published[0]), begun, None, Load(published=published[1])])
    start = start_message(tmp_path / "model", buffers, EngineConfig(kv_on_load="drain", device="cpu"))
    with pytest.raises(NothingToDoError):
        RolloutWorker(script, start).serve()  # type: ignore[arg-type]
    assert [type(message) for message in script.sent] == [EngineReady, Loaded, Finished, Loaded]
    assert script.sent[-1].published == published[1]


@pytest.mark.parametrize("ends", [True, False])
def test_a_session_has_its_cache_parked_until_it_ends(tmp_path: Path, ends: bool) -> None:
    make_run(tmp_path)
    buffers, model = create_buffers("test"), load_model(tmp_path / "model")
    published = SharedMemoryChannel(buffers, WeightLayout(model)).publish(0, model.named_parameters())()
    request = make_request(1, prompt_length=9, max_completion_tokens=4, vocab_size=8)
    turn = Generate(requests=(msgspec.structs.replace(request, session=7),))
    others = [None] * 6  # the turn takes four steps
    script = Script([Load(published=published), turn, *others, EndSession(session=7 if ends else 8)])
    worker = RolloutWorker(script, start_message(tmp_path / "model", buffers, EngineConfig(device="cpu")))  # type: ignore[arg-type]
    with pytest.raises(NothingToDoError):
        worker.serve()
    assert [type(message) for message in script.sent] == [EngineReady, Loaded, Finished]
    stats = worker._engine.stats(waited_seconds=0.0)
    assert stats is not None
    assert stats.num_parked_tokens == (0 if ends else 9 + 3)


class LateEngine:
    """Has its weights at the second look; writes down what it is asked."""

    must_step = False

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._num_looks = 0

    def has_arrived(self, published: Publication, *, timeout_seconds: float) -> bool:
        self._num_looks += 1
        return self._num_looks > 1

    def is_ready_to_load(self) -> bool:
        return True

    def load(self, published: Publication) -> int:
        self.calls.append("load")
        return 0

    def submit(self, request: Request) -> None:
        self.calls.append("submit")

    def step(self) -> list[Any]:
        return []

    def stats(self, *, waited_seconds: float) -> None:
        return None

    def close(self) -> None:
        pass


def test_a_request_behind_a_load_is_never_served_before_it(tmp_path: Path) -> None:
    make_run(tmp_path)
    script = Script(
        [Load(published=Publication(version=0, checksum="")), Generate(requests=(make_request(1, vocab_size=8),))]
    )
    start = start_message(tmp_path / "model", create_buffers("test"), EngineConfig(device="cpu"))
    worker = RolloutWorker(script, start)  # type: ignore[arg-type]
    worker._engine = engine = LateEngine()  # type: ignore[assignment]
    with pytest.raises(NothingToDoError):
        worker.serve()
    assert engine.calls == ["load", "submit"]
