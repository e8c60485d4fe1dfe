"""The worker's end of Ray's weight channel, with a host that only pretends: no cluster is needed."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest
import torch
from tiny_models import random_model, random_weights

from freerun.backends.ray.transfer import DESCRIPTORS_VARIABLE, Bring, Moved, Put
from freerun.backends.ray.weights import ObjectStoreChannel
from freerun.errors import WeightsError
from freerun.processes.frames import FrameReader, to_frame
from freerun.types import WeightRoute
from freerun.weights.buffers import create_buffers
from freerun.weights.channel import open_channel
from freerun.weights.layout import WeightLayout

ROUTE = WeightRoute(channel="ray", address="the trainer's actor")


class FakeHosts:
    """Two hosts and the object store between them, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stored: dict[int, bytes] = {}
        self._monkeypatch = monkeypatch
        self.may_move = threading.Event()
        self.error = ""
        self._sockets: list[socket.socket] = []

    def open(self) -> ObjectStoreChannel:
        ours, theirs = socket.socketpair()
        buffers = create_buffers("test")
        descriptors = (*buffers, theirs.detach())
        self._monkeypatch.setenv(DESCRIPTORS_VARIABLE, ",".join(map(str, descriptors)))
        threading.Thread(target=self._serve, args=(ours, buffers), daemon=True).start()
        channel = open_channel(ROUTE, WeightLayout(random_model(0)))
        assert isinstance(channel, ObjectStoreChannel)
        self._sockets += [ours, channel._host._socket]
        return channel

    def close(self) -> None:
        for sock in self._sockets:
            sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _serve(self, sock: socket.socket, buffers: tuple[int, ...]) -> None:
        reader: FrameReader[Put | Bring] = FrameReader(sock, Put | Bring)
        while (request := reader.read()) is not None:
            descriptor = buffers[request.version % 2]
            if isinstance(request, Put):
                self._stored[request.version] = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            elif self.may_move.wait(30) and not self.error:
                os.pwrite(descriptor, self._stored[request.version], 0)
            sock.sendall(to_frame(Moved(request.version, error=self.error)))


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHosts]:
    hosts = FakeHosts(monkeypatch)
    yield hosts
    hosts.close()


def test_weights_arrive_while_the_engine_goes_on_and_are_confirmed(hosts: FakeHosts) -> None:
    trainer, engine = hosts.open(), hosts.open()
    published = trainer.publish(1, random_weights(1))()
    assert not engine.has_arrived(published), "asking does not wait"
    hosts.may_move.set()
    assert engine.has_arrived(published, timeout_seconds=30)
    assert engine.has_arrived(published), "and stays true"
    fetched = engine.fetch(published)
    assert all(torch.equal(fetched[name], tensor) for name, tensor in random_weights(1).items())


def test_weights_that_could_not_be_moved_are_an_error_with_the_reason(hosts: FakeHosts) -> None:
    trainer, engine = hosts.open(), hosts.open()
    published = trainer.publish(1, random_weights(1))()
    hosts.error = "the trainer's node is gone"
    hosts.may_move.set()
    with pytest.raises(WeightsError, match="Ray's object store: the trainer's node is gone"):
        engine.has_arrived(published, timeout_seconds=30)
