"""The rollout worker's loop, in this process, with a script in place of the controller."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_request
from tiny_runs import make_run

from freerun.config.engine import EngineConfig
from freerun.config.lora import LoraConfig
from freerun.model.checkpoint import load_model
from freerun.weights.buffers import create_buffers, shared_route
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedMemoryChannel
from freerun.workers.messages import EngineReady, Finished, Generate, Load, Loaded, Report, StartEngine, ToRollout
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


def test_a_load_that_waits_for_the_last_completion_does_not_wait_for_a_message_too(tmp_path: Path) -> None:
    make_run(tmp_path)
    buffers, model = create_buffers("test"), load_model(tmp_path / "model")
    weights = SharedMemoryChannel(buffers, WeightLayout(model))
    published = []
    for version in range(2):
        published.append(weights.publish(version, model.named_parameters())())
    begun = Generate(requests=(make_request(1, max_completion_tokens=4, vocab_size=8),))
    script = Script([Load(published=published[0]), begun, None, Load(published=published[1])])
    start = StartEngine(
        model_directory=str(tmp_path / "model"),
        engine=EngineConfig(kv_on_load="drain", device="cpu"),
        max_sequence_tokens=64,
        seed=0,
        lora=LoraConfig(),
        base_directory="",
        weights=shared_route(buffers),
    )
    with pytest.raises(NothingToDoError):
        RolloutWorker(script, start).serve()  # type: ignore[arg-type]
    assert [type(message) for message in script.sent] == [EngineReady, Loaded, Finished, Loaded]
    assert script.sent[-1].published == published[1]
