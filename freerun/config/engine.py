"""How completions are generated: which engine, how many, on which device."""

import re
from dataclasses import dataclass
from typing import Literal

from freerun.config.section import Section, require
from freerun.config.values import Count, CountOrNone, FilePath, GroupCount, NumProcesses, NumThreads

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["float32", "bfloat16"]
BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2}
"""Bytes per number."""
BACKENDS = {
    "native": "freerun.backends.native.backend:NATIVE",
    "vllm": "freerun.backends.vllm.backend:VLLM",
}
"""The generator backends (`freerun.backends.backend`), each imported when a recipe names it."""


@dataclass(frozen=True)
class EngineConfig(Section, name="engine"):
    backend: str = "native"
    """What generates: native is the embedded engine; the others start a server for each worker, or join those at
    engine.addresses."""
    num_workers: NumProcesses = 1
    """Rollout worker processes, each with its own engine."""
    min_workers: CountOrNone = 0
    """Above 0, rollout workers retire while the trainer is the limit, down to this many, and come back when it
    waits. What they had is free for others. 0 keeps the number at engine.num_workers."""
    num_threads: NumThreads = 0
    """Torch threads and cores of each worker; 0 divides the cores evenly among workers and trainer ranks."""
    num_slots: GroupCount = 64
    """Sequences an engine decodes at once."""
    cache_tokens: Count = 65536
    """Tokens the KV cache may hold over all sequences; when it is full the youngest sequence is preempted."""
    parked_tokens: CountOrNone = 32768
    """Tokens of KV cache kept for the next turns of sessions, outside the slots; the session that parked longest
    ago is dropped first. 0 keeps none. A server uses its prefix cache instead."""
    prefill_chunk_tokens: Count = 512
    """Prompt and recomputed tokens processed in one step in addition to decoding."""
    kv_on_load: Literal["recompute", "keep", "drain"] = "recompute"
    """When new weights arrive: recompute the KV cache under them (the paper), keep it (PipelineRL), or (drain)
    load them only when all running sequences are finished, and start none meanwhile."""
    device: Device = "auto"
    """Where engines compute; auto takes CUDA if the machine has it."""
    dtype: Dtype = "float32"
    """What engines compute in; bfloat16 is for GPUs: on most CPUs it is ten times slower."""
    steady_rows: bool = True
    """On CPUs, pad products of fewer than four rows, where a trial at the start shows that this makes the bits of
    a completion independent of what is decoded alongside it. A group that is sampled again then has its logprobs
    to the bit."""
    addresses: tuple[str, ...] = ()
    """Servers of this machine to join, host:port, one for each worker; empty starts them."""
    num_gpus: NumProcesses = 1
    """GPUs of each worker on a GPU: as many as its server splits the model over."""
    server_python: FilePath = ""
    """Python interpreter of the environment that has the server's package; empty takes the one of freerun."""
    server_arguments: tuple[str, ...] = ()
    """Further arguments for the servers that freerun starts, such as --tensor-parallel-size=4."""

    @property
    def is_elastic(self) -> bool:
        """Whether the number of workers changes during a run."""
        return 0 < self.min_workers < self.num_workers

    def check(self) -> None:
        require(
            self.backend in BACKENDS,
            f'engine.backend = "{self.backend}" is unknown; choose one of {", ".join(BACKENDS)}',
        )
        require(
            self.min_workers <= self.num_workers,
            f"engine.min_workers = {self.min_workers} exceeds engine.num_workers = {self.num_workers}, the most "
            "that run at once; lower it or raise engine.num_workers",
        )
        require(
            len(self.addresses) in (0, self.num_workers),
            f"engine.addresses names {len(self.addresses)} servers for engine.num_workers = {self.num_workers}; "
            "name one for each worker",
        )
        for address in self.addresses:
            require(
                re.fullmatch(r"[^\s/]+:\d{1,5}", address) is not None,
                f'engine.addresses: "{address}" is not host:port, such as 127.0.0.1:8123',
            )
        require(
            len(set(self.addresses)) == len(self.addresses),
            f"engine.addresses names a server twice ({', '.join(self.addresses)}); each worker needs its own",
        )
