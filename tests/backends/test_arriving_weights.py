"""New weights are prepared beside the steps of the old ones, and every token says which of them made it."""

import threading
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import pytest
from engine_reference import logprobs_of_full_forward
from tiny_models import WIDE, Letters, make_request, random_model, random_weights
from torch import Tensor

from freerun.backends.native.engine import EmbeddedEngine
from freerun.config.engine import EngineConfig
from freerun.engine.engine import Engine
from freerun.engine.pinned import PinnableEngine
from freerun.errors import WeightsError
from freerun.types import Completion, Publication, Request
from freerun.weights.channel import State

PATIENCE = 60.0
WEIGHTS = {
    version: {name: weight / 8 for name, weight in random_weights(500 + version, WIDE).items()}
    for version in range(5)
}
REQUEST = make_request(1, num_samples=2, max_completion_tokens=20, vocab_size=WIDE.vocab_size)
ALONE = msgspec.structs.replace(REQUEST, num_samples=1)


class HeldChannel:
    """Weights that arrive when the test lets them, in two buffers, like published ones."""

    def __init__(self) -> None:
        self.may_arrive = threading.Event()
        self.may_arrive.set()
        self._buffers: list[dict[str, Tensor]] = [{}, {}]

    def write(self, version: int) -> Publication:
        """As the trainer does, over the version before the last."""
        buffer = self._buffers[version % 2]
        for name, weight in WEIGHTS[version].items():
            buffer.setdefault(name, weight.clone()).copy_(weight)
        return Publication(version=version, checksum="")

    def publish(self, version: int, state: State) -> Callable[[], Publication]:
        raise NotImplementedError

    def has_arrived(self, published: Publication, *, timeout_seconds: float = 0.0) -> bool:
        return True

    def fetch(self, published: Publication) -> Mapping[str, Tensor]:
        assert self.may_arrive.wait(PATIENCE)
        if published.checksum:
            raise WeightsError(f"weights of version {published.version} arrived damaged")
        return self._buffers[published.version % 2]

    def path(self, version: int) -> str:
        raise NotImplementedError


def make_engine(kv_on_load: str = "recompute") -> tuple[EmbeddedEngine, HeldChannel]:
    config = msgspec.convert({"num_slots": 4, "cache_tokens": 400, "kv_on_load": kv_on_load}, EngineConfig)
    engine = Engine(random_model(0, WIDE), config, text=Letters(), max_sequence_tokens=100, seed=7)
    channel = HeldChannel()
    embedded = EmbeddedEngine(PinnableEngine(engine), channel, drains=kv_on_load == "drain")
    load(embedded, channel, 0)
    return embedded, channel


def load(engine: EmbeddedEngine, channel: HeldChannel, version: int) -> int:
    published = channel.write(version)
    assert engine.has_arrived(published, timeout_seconds=PATIENCE)
    return engine.load(published)


def finish(engine: EmbeddedEngine) -> dict[int, tuple[Completion, ...]]:
    done: dict[int, tuple[Completion, ...]] = {}
    while engine.must_step:
        done |= {request.request_id: completions for request, completions in engine.step()}
    return done


def assert_computed_by_the_versions_it_names(request: Request, completion: Completion) -> None:
    for version in set(completion.versions.tolist()):
        mine = completion.versions == version
        expected = logprobs_of_full_forward(random_model(0, WIDE), WEIGHTS[version], request, completion)
        np.testing.assert_allclose(completion.logprobs[mine], expected[mine], atol=1e-5)


def test_steps_go_on_under_the_old_version_until_the_swap() -> None:
    engine, channel = make_engine()
    engine.submit(ALONE)
    for _ in range(3):
        engine.step()
    channel.may_arrive.clear()
    published = channel.write(1)
    for _ in range(4):
        assert not engine.has_arrived(published, timeout_seconds=0.0)
        engine.step()
    channel.may_arrive.set()
    assert engine.has_arrived(published, timeout_seconds=PATIENCE)
    engine.step()  # packed, but not yet swapped in
    assert engine.load(published) == 1
    for completion in finish(engine)[1]:
        assert completion.versions.tolist() == [0] * 8 + [1] * 12
        assert_computed_by_the_versions_it_names(ALONE, completion)


def test_versions_follow_each_other_through_the_same_memory() -> None:
    engine, channel = make_engine()
    engine.submit(REQUEST)
    for version in range(1, 5):
        for _ in range(4):
            engine.step()
        load(engine, channel, version)
    for completion in finish(engine)[1]:
        assert set(completion.versions.tolist()) == {0, 1, 2, 3, 4}
        assert_computed_by_the_versions_it_names(REQUEST, completion)


def test_a_pinned_version_keeps_its_weights_while_others_are_packed_beside_it() -> None:
    engine, channel = make_engine()
    engine.pin(0)
    pinned = msgspec.structs.replace(REQUEST, request_id=2, pinned_version=0)
    for request in (REQUEST, pinned):
        engine.submit(request)
    for version in range(1, 5):
        for _ in range(6):
            engine.step()
        load(engine, channel, version)
    done = finish(engine)
    for completion in done[2]:
        assert set(completion.versions.tolist()) == {0}
        assert_computed_by_the_versions_it_names(pinned, completion)
    for completion in done[1]:
        assert len(set(completion.versions.tolist())) > 2
        assert_computed_by_the_versions_it_names(REQUEST, completion)


def test_a_version_that_is_overtaken_while_it_is_packed_is_never_used() -> None:
    engine, channel = make_engine()
    engine.submit(ALONE)
    engine.step()
    channel.may_arrive.clear()
    first, second = channel.write(1), channel.write(2)
    assert not engine.has_arrived(first, timeout_seconds=0.0)
    assert not engine.has_arrived(second, timeout_seconds=0.0), "one at a time"
    channel.may_arrive.set()
    assert engine.has_arrived(second, timeout_seconds=PATIENCE)
    engine.load(second)
    for completion in finish(engine)[1]:
        assert completion.versions.tolist() == [0] * 1 + [2] * 19
        assert_computed_by_the_versions_it_names(ALONE, completion)


def test_a_draining_engine_finishes_under_the_old_version_what_ran_while_the_new_one_was_packed() -> None:
    engine, channel = make_engine("drain")
    engine.submit(REQUEST)
    engine.step()
    published = channel.write(1)
    assert engine.has_arrived(published, timeout_seconds=PATIENCE)
    done: dict[int, tuple[Completion, ...]] = {}
    while not engine.is_ready_to_load():
        done |= {request.request_id: completions for request, completions in engine.step()}
    assert engine.load(published) == 0
    assert {version for completion in done[1] for version in completion.versions.tolist()} == {0}


def test_damaged_weights_are_refused_by_the_loop_and_the_old_ones_stay() -> None:
    engine, _ = make_engine()
    damaged = Publication(version=1, checksum="other bytes")
    assert engine.has_arrived(damaged, timeout_seconds=PATIENCE)
    with pytest.raises(WeightsError, match="version 1 arrived damaged"):
        engine.load(damaged)
    engine.submit(REQUEST)
    assert {version for c in finish(engine)[1] for version in c.versions.tolist()} == {0}
