"""A worker that only has weights: it publishes bytes made from a seed, or says what it was given to load."""

import os
import time

import msgspec
import numpy as np
import xxhash

from freerun.backends.ray.transfer import HostSocket, inherited_descriptors
from freerun.processes.parent import Parent, run_worker
from freerun.types import Publication


class Make(msgspec.Struct, frozen=True, tag=True):
    """Fill the buffer of this version and publish it."""

    version: int
    num_bytes: int


class Load(msgspec.Struct, frozen=True, tag=True):
    published: Publication


class Say(msgspec.Struct, frozen=True, tag=True):
    what: str


class Published(msgspec.Struct, frozen=True, tag=True):
    published: Publication


class Loaded(msgspec.Struct, frozen=True, tag=True):
    published: Publication


ToWorker = Make | Load | Say
FromWorker = Published | Loaded | Say


def serve(parent: Parent[ToWorker]) -> None:
    *buffers, descriptor = inherited_descriptors()
    host = HostSocket(descriptor)
    while True:
        match parent.receive(timeout_seconds=60):
            case Make(version=version, num_bytes=num_bytes):
                content = np.random.default_rng(version).integers(0, 256, num_bytes, dtype=np.uint8).tobytes()
                os.ftruncate(buffers[version % 2], num_bytes)
                os.pwrite(buffers[version % 2], content, 0)
                host.share(version)
                parent.send(Published(Publication(version=version, checksum=xxhash.xxh3_64(content).hexdigest())))
            case Load(published=published):
                assert host.bring(published.version, timeout_seconds=60)
                descriptor = buffers[published.version % 2]
                content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
                checksum = xxhash.xxh3_64(content).hexdigest()
                parent.send(Loaded(Publication(version=published.version, checksum=checksum)))
            case Say(what="fail"):
                raise ValueError("asked to fail")
            case Say(what="cores"):
                parent.send(Say(",".join(map(str, sorted(os.sched_getaffinity(0))))))
            case Say(what="memory"):
                inodes = [os.fstat(descriptor).st_ino for descriptor in buffers]
                parent.send(Say(" ".join(map(str, [os.getpid(), *inodes]))))
            case Say(what="host"):
                parent.send(Say(os.environ["FREERUN_HOST"]))
            case Say(what="hang"):
                time.sleep(3600)
            case Say() as said:
                parent.send(said)


if __name__ == "__main__":
    run_worker(ToWorker, serve)
