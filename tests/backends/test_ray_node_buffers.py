"""The buffers that the hosts of a node share; the hosts are processes of this machine, no cluster is needed."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from freerun.backends.ray.node_buffers import Holder, NodeBuffers
from freerun.errors import WorkerError

NAME = "freerun-test"
OLD, NEW = b"old!" * 1000, b"new!" * 1000


def opened(buffers: NodeBuffers) -> NodeBuffers:
    """The same buffers as another host sees them."""
    found = NodeBuffers.open(NAME, [buffers.holder])
    assert found is not None
    return found


def content(buffers: NodeBuffers, version: int) -> bytes:
    return os.pread(buffers.descriptors[version % 2], len(NEW) + 1, 0)


def test_who_opens_the_buffers_of_another_has_what_it_filled() -> None:
    first = NodeBuffers.create(NAME)
    second = opened(first)
    assert not second.has(0)
    first.fill(0, memoryview(OLD))
    first.fill(1, memoryview(NEW))
    assert second.has(0)
    assert second.has(1)
    assert (content(second, 0), content(second, 1)) == (OLD, NEW)


def test_buffers_live_on_without_the_host_that_created_them() -> None:
    script = f"""
from freerun.backends.ray.node_buffers import NodeBuffers
buffers = NodeBuffers.create("{NAME}")
buffers.fill(1, memoryview(b"old!" * 1000))
print(*buffers.holder.descriptors, flush=True)
input()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        holder = Holder(first.pid, tuple(map(int, first.stdout.readline().split())))
        second = NodeBuffers.open(NAME, [holder])
        first.kill()
    assert second is not None
    assert second.has(1)
    assert content(opened(second), 1) == OLD
    assert NodeBuffers.open(NAME, [holder]) is None
    assert NodeBuffers.open(NAME, [holder, second.holder]) is not None


def test_a_host_that_dies_while_it_fills_leaves_neither_a_label_nor_a_lock() -> None:
    survivor = NodeBuffers.create(NAME)
    survivor.fill(1, memoryview(OLD))
    script = f"""
import asyncio, os, signal
from freerun.backends.ray import node_buffers

write = os.pwrite

def write_half(descriptor, view, begin):
    write(descriptor, view[: len(view) // 2], begin)
    os.kill(os.getpid(), signal.SIGKILL)

async def fill():
    buffers = node_buffers.NodeBuffers.open("{NAME}", [node_buffers.Holder{tuple(survivor.holder)}])
    async with buffers.locked():
        os.pwrite = write_half
        buffers.fill(3, memoryview(b"new!" * 1000))

asyncio.run(fill())
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode < 0
    assert content(survivor, 3) == NEW[:2000] + OLD[2000:]
    assert not survivor.has(1)
    assert not survivor.has(3)

    async def fill_again() -> None:
        async with asyncio.timeout(30), survivor.locked():
            survivor.fill(3, memoryview(NEW))

    asyncio.run(fill_again())
    assert survivor.has(3)
    assert content(survivor, 3) == NEW


def test_hosts_of_a_node_fill_one_after_the_other() -> None:
    first = NodeBuffers.create(NAME)
    second = opened(first)
    order = []

    async def fill(buffers: NodeBuffers, who: str) -> None:
        async with buffers.locked():
            order.append(f"{who} begins")
            await asyncio.sleep(0.05)
            order.append(f"{who} ends")

    async def both() -> None:
        await asyncio.gather(fill(first, "first"), fill(second, "second"))

    asyncio.run(both())
    assert order == ["first begins", "first ends", "second begins", "second ends"]


def test_a_late_host_cannot_replace_a_version_by_an_older_one() -> None:
    buffers = NodeBuffers.create(NAME)
    buffers.label(3)
    with pytest.raises(ValueError, match="version 1 is no longer wanted: version 3 is in its buffer"):
        opened(buffers).has(1)


def test_a_buffer_that_others_have_mapped_is_never_cut() -> None:
    buffers = NodeBuffers.create(NAME)
    buffers.fill(1, memoryview(OLD))
    with pytest.raises(ValueError, match="version 3 has 10 bytes, the buffers of this node have 4000"):
        buffers.fill(3, memoryview(NEW)[:10])
    assert buffers.has(1)


def test_memory_of_another_run_or_of_a_later_owner_of_the_pid_is_not_opened() -> None:
    buffers = NodeBuffers.create("freerun-another")
    assert NodeBuffers.open(NAME, [buffers.holder]) is None
    with Path(os.devnull).open("rb") as file:
        assert NodeBuffers.open(NAME, [Holder(os.getpid(), (file.fileno(),) * 3)]) is None


def test_a_node_whose_actors_cannot_see_each_other_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = NodeBuffers.create(NAME)

    def refuse(path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "readlink", refuse)
    with pytest.raises(WorkerError, match=rf"process {os.getpid()} holds .* all its actors run as one user"):
        NodeBuffers.open(NAME, [buffers.holder])
