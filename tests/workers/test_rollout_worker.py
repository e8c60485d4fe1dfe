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
    stats = worker._engine.stats()
    assert stats is not None
    assert stats.num_parked_tokens == (0 if ends else 9 + 3)
