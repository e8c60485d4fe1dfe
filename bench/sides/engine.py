"""The embedded engine: generates for groups of prompts, in one process or in two with a core each.

    python engine.py MODEL_DIRECTORY NUM_PROCESSES NUM_SLOTS

The processes read one copy of the weights in shared memory, as rollout workers do. With two, each is pinned to one
core with one thread, has NUM_SLOTS slots and takes every other group. A group is a prompt and the lengths of its
completions. Only the length ends a completion, so the number of tokens is known in advance.
"""

import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from asked import answer

MAX_SEQUENCE_TOKENS = 2048


def write_weights(directory: Path, buffer: int) -> None:
    """In a separate process: reading the files must not count as memory of the engine."""
    from freerun.model.checkpoint import load_model
    from freerun.weights.layout import WeightLayout
    from freerun.weights.shared import SharedMemoryChannel

    model = load_model(directory)
    SharedMemoryChannel([buffer], WeightLayout(model)).write(0, dict(model.named_parameters()))


def serve(
    pipe: Connection, inherited: list[Connection], directory: Path, buffer: int, num_slots: int, core: int | None
) -> None:
    """One engine: set it up, then serve requests from the pipe until it closes."""
    for other_end in inherited:
        other_end.close()
    if core is not None:
        os.sched_setaffinity(0, {core})
    import torch

    from freerun.config.engine import EngineConfig
    from freerun.engine.engine import Engine
    from freerun.engine.sequence import Sequence
    from freerun.model.checkpoint import empty_model
    from freerun.types import Publication
    from freerun.weights.layout import WeightLayout
    from freerun.weights.shared import SharedMemoryChannel

    class EndingEngine(Engine):
        """Ends each sample at its own length, as a policy would."""

        lengths: dict[int, list[int]]
        """Of the samples of each request."""

        def _finish(self, sequence: Sequence) -> bool:
            group = sequence.group
            length = self.lengths[group.request.request_id][group.sequences.index(sequence)]
            if sequence.num_sampled < length:
                return False
            sequence.finish_reason = "stop"
            self._scheduler.remove(sequence)
            return True

    model = empty_model(directory)
    shared = SharedMemoryChannel([buffer], WeightLayout(model))
    weights = shared.fetch(Publication(version=0, checksum=shared.checksum(0)))
    config = EngineConfig(num_slots=num_slots, cache_tokens=num_slots * MAX_SEQUENCE_TOKENS)
    engine = EndingEngine(
        model.to_empty(device="cpu"), config, text=NoText(), max_sequence_tokens=MAX_SEQUENCE_TOKENS, seed=0
    )
    engine.load(0, weights)
    pipe.send(None)
    while True:
        try:
            num_threads, requests, engine.lengths = pipe.recv()
        except EOFError:
            return
        torch.set_num_threads(num_threads)
        for request in requests:
            engine.submit(request)
        num_tokens = 0
        while engine.has_work:
            num_tokens += sum(len(c.token_ids) for _, completions in engine.step() for c in completions)
        pipe.send(num_tokens)


class NoText:
    """The completions are not read."""

    def decode(self, token_ids: object) -> str:
        return ""

    def decode_end(self, token_ids: list[int], *, first: int, num_characters: int) -> str:
        return ""


class Engines:
    """The engine processes, asked as one side."""

    def __init__(self, directory: Path, num_processes: int, num_slots: int) -> None:
        # This process never imports torch: a fork after that would inherit dead threads.
        context = multiprocessing.get_context("fork")
        self._buffer = os.memfd_create("weights")
        writer = context.Process(target=write_weights, args=(directory, self._buffer))
        writer.start()
        writer.join()
        if writer.exitcode:
            raise SystemExit(f"the weights of {directory} could not be read")
        cores: list[Any] = [None] if num_processes == 1 else sorted(os.sched_getaffinity(0))[:num_processes]
        self._pipes: list[Connection] = []
        for core in cores:
            ours, theirs = context.Pipe()
            self._pipes.append(ours)
            arguments = (theirs, self._pipes, directory, self._buffer, num_slots, core)
            context.Process(target=serve, args=arguments, daemon=True).start()
            theirs.close()
        for pipe in self._pipes:
            pipe.recv()

    def generate(self, groups: list[dict[str, Any]], num_threads: int = 1, seed: int = 0) -> dict[str, Any]:
        """Generate for all groups, submitted at once; `seed` tells the samples of one call from another's."""
        import numpy as np

        from freerun.types import Request, Sampling

        requests = [
            Request(
                request_id=index,
                ordinal=seed * 1_000_000 + index,
                prompt_token_ids=np.array(group["prompt"], dtype=np.int32),
                num_samples=len(group["lengths"]),
                sampling=Sampling(max_completion_tokens=max(group["lengths"])),
            )
            for index, group in enumerate(groups)
        ]
        lengths = {index: group["lengths"] for index, group in enumerate(groups)}
        num_threads = num_threads if len(self._pipes) == 1 else 1
        begin = time.perf_counter()
        for index, pipe in enumerate(self._pipes):
            pipe.send((num_threads, requests[index :: len(self._pipes)], lengths))
        num_tokens = sum(pipe.recv() for pipe in self._pipes)
        return {"tokens": num_tokens, "seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    answer(Engines(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).generate)
