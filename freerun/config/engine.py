"""How completions are generated: which engine, how many, on what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from freerun.config.checks import GROUPS, PROCESSES, THREADS, TOKENS, require, require_paths, require_ranges

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["float32", "bfloat16"]
BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2}
"""Of one number."""


@dataclass(frozen=True)
class EngineConfig:
    backend: Literal["native", "vllm"] = "native"
    """native is the embedded engine; vllm starts a vLLM server for each worker, or joins engine.addresses."""
    num_workers: int = 1
    """Rollout worker processes, each with its own engine."""
    num_threads: int = 0
    """Torch threads and cores of each worker; 0 divides the cores evenly among workers and trainer ranks."""
    num_slots: int = 64
    """Sequences an engine decodes at once."""
    cache_tokens: int = 65536
    """Tokens the KV cache may hold over all sequences; when it is full the youngest sequence is preempted."""
    prefill_chunk_tokens: int = 512
    """Prompt and recomputed tokens processed in one step beside decoding."""
    kv_on_load: Literal["recompute", "keep", "drain"] = "recompute"
    """When new weights arrive: recompute the KV cache under them (the paper), keep it (PipelineRL), or (drain)
    load them only when all running sequences are finished, and start none meanwhile."""
    device: Device = "auto"
    """Where engines compute; auto takes CUDA if the machine has it."""
    dtype: Dtype = "float32"
    """What engines compute in; bfloat16 is for GPUs: on most CPUs it is ten times slower."""
    addresses: tuple[str, ...] = ()
    """vLLM servers of this machine to join, host:port, one for each worker; empty starts them (docs/vllm.md)."""
    num_gpus: int = 1
    """GPUs that a worker on a GPU asks a Ray cluster for; as many as a vLLM server splits its model over."""
    vllm_python: str = ""
    """Python interpreter of the environment that has vLLM; empty takes the one that runs freerun."""
    vllm_arguments: tuple[str, ...] = ()
    """Further arguments for the vLLM servers that freerun starts, such as --tensor-parallel-size=4."""

    def __post_init__(self) -> None:
        require_ranges(
            "engine",
            self,
            num_workers=PROCESSES,
            num_threads=THREADS,
            num_gpus=PROCESSES,
            num_slots=GROUPS,
            cache_tokens=TOKENS,
            prefill_chunk_tokens=TOKENS,
        )
        require_paths("engine", self, "vllm_python")
        require(
            self.kv_on_load != "drain" or self.backend == "native",
            f'engine.kv_on_load = "drain", but engine.backend = "{self.backend}" interrupts its sequences; set '
            '"recompute" or "keep"',
        )
        if self.backend != "vllm":
            for name in ("addresses", "vllm_python", "vllm_arguments"):
                require(
                    not getattr(self, name),
                    f'engine.{name} is set, but engine.backend = "{self.backend}"; set engine.backend = "vllm"',
                )
        require(
            self.num_gpus == 1 or self.backend == "vllm",
            f"engine.num_gpus = {self.num_gpus}, but the embedded engine computes on one; set engine.backend = "
            '"vllm" and engine.vllm_arguments, such as --tensor-parallel-size=4',
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
