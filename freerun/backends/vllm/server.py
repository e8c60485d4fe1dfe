"""A vLLM server of one rollout worker: start it or join it, know when it is ready and when it is gone.

A started server is a child in the worker's process group, so that it and the processes that it starts end with the
worker in every case (`processes/guard.py`, `processes/worker_process.py`). It listens on the loopback interface
and answers only to who knows its token, which no other user can read. What it prints goes to the worker's log.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from freerun.backends.vllm.client import VllmClient
from freerun.config.engine import BYTES, EngineConfig
from freerun.errors import ConfigError, WorkerError
from freerun.model.config_file import cached_numbers

PLUGIN_DIRECTORY = Path(__file__).parent / "plugin"
TOKEN_VARIABLE = "FREERUN_VLLM_TOKEN"
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""That vLLM 0.32's attention on CPUs takes."""
BLOCK_TOKENS = 32
"""Of the KV cache; the smallest that vLLM's CPU attention takes, and what short sequences waste least with."""
POLL_SECONDS = 0.25
PROGRESS_SECONDS = 15.0
SHARED_MEMORY = Path("/dev/shm")
PYTHON_NAMES = ("psm_", "sem.mp-")
"""Of Python's shared memory and semaphores. Their resource tracker is killed with the server."""


def require_vllm(engine: EngineConfig) -> None:
    """Refuse a run whose servers could not be started; joined servers are somebody else's."""
    if engine.backend != "vllm" or engine.addresses:
        return
    python = _interpreter(engine)
    for package, remedy in (
        ("vllm", "make backends (CPU) or pip install 'freerun[vllm]' (GPU), or set engine.backend = \"native\""),
        ("xxhash", f"{python} -m pip install xxhash"),
    ):
        if not _has_package(python, package):
            what = {"vllm": "vLLM"}.get(package, package)
            raise ConfigError(f'engine.backend = "vllm" needs {what}, which {python} does not have; {remedy}')


def _interpreter(engine: EngineConfig) -> str:
    python = engine.vllm_python or sys.executable
    # A relative path is relative to the user's directory, wherever it is used; a bare name is looked up.
    return os.path.abspath(python) if os.sep in python else python


def _has_package(python: str, package: str) -> bool:
    finds = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    try:
        # In a directory of ours: in the user's, a folder named vllm would pass for the package.
        found = subprocess.run([python, "-c", finds], cwd=PLUGIN_DIRECTORY, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f'engine.vllm_python = "{python}" is no Python interpreter: {error}') from None
    return found.returncode == 0


@dataclass(frozen=True)
class ServerSettings:
    """What a server is started with."""

    engine: EngineConfig
    model_directory: Path
    model_config: Mapping[str, Any]
    """Its config.json."""
    max_sequence_tokens: int
    loads_weights: bool
    """Whether weights arrive by publication: then it starts with none worth the name."""
    num_threads: int
    worker_index: int = 0

    @property
    def gpus(self) -> str:
        """What CUDA is to see: the visible GPUs that are this worker's by the rule of `model/device.py`."""
        if self.engine.device == "cpu":
            return ""
        begin = self.worker_index * self.engine.num_gpus
        wanted = range(begin, begin + self.engine.num_gpus)
        visible = os.environ.get(GPUS_VARIABLE)
        if visible is None:
            return ",".join(map(str, wanted))
        # Ray has chosen for its workers: then the worker's own GPUs are all there are.
        names = visible.split(",")
        return ",".join(dict.fromkeys(names[index % len(names)] for index in wanted))

    @property
    def cache_bytes(self) -> int:
        """Room for `engine.cache_tokens`, but no more than all slots can use, in whole blocks."""
        slot_blocks = -(-self.max_sequence_tokens // BLOCK_TOKENS)
        # Each sequence wastes up to a block, and vLLM keeps one for itself.
        asked_blocks = -(-self.engine.cache_tokens // BLOCK_TOKENS) + self.engine.num_slots
        num_blocks = 1 + min(asked_blocks, self.engine.num_slots * slot_blocks)
        return num_blocks * BLOCK_TOKENS * cached_numbers(self.model_config) * BYTES[self.engine.dtype]

    def arguments(self, port: int) -> list[str]:
        longest = min(self.max_sequence_tokens, self.model_config["max_position_embeddings"])
        step_tokens = max(longest, self.engine.num_slots + self.engine.prefill_chunk_tokens)
        return [
            "--model", str(self.model_directory),
            "--served-model-name", "freerun",
            "--host", "127.0.0.1",
            "--port", str(port),
            "--dtype", self.engine.dtype,
            "--max-num-seqs", str(self.engine.num_slots),
            "--max-model-len", str(longest),
            "--kv-cache-memory-bytes", str(self.cache_bytes),
            "--block-size", str(BLOCK_TOKENS),
            # A token is labelled when its step returns; with one step at a time that is the step's own version.
            "--no-async-scheduling",
            "--enforce-eager",
            # A prompt that is computed in parts, for a sample with a seed, ends vLLM 0.32 on CPUs ("CPU Generator
            # does not use offset"); so prompts are computed whole.
            "--no-enable-chunked-prefill",
            "--max-num-batched-tokens", str(step_tokens),
            "--enable-prefix-caching",
            "--logprobs-mode", "processed_logprobs",
            # Only what a request says counts, not the sampling defaults of the model's directory.
            "--generation-config", "vllm",
            "--enable-scale-out",
            "--worker-extension-cls", "freerun_vllm_plugin.WeightReader",
            "--middleware", "freerun_vllm_plugin.RequireToken",
            "--disable-uvicorn-access-log",
            *(["--load-format", "dummy"] if self.loads_weights else []),
            *self.engine.vllm_arguments,
        ]  # fmt: skip

    def environment(self, token: str) -> dict[str, str]:
        cores = sorted(os.sched_getaffinity(0))
        # Bound to the worker's own cores where it has any; else as many threads as it may use, wherever.
        bind = ",".join(map(str, cores)) if len(cores) == self.num_threads else "nobind"
        path = [str(PLUGIN_DIRECTORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "VLLM_CPU_OMP_THREADS_BIND": bind,
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONSAFEPATH": "1",  # the server runs in the user's directory, whose modules are not for it
            GPUS_VARIABLE: self.gpus,
            TOKEN_VARIABLE: token,
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }


class VllmServer:
    """A server that answers, started or joined."""

    def __init__(
        self, client: VllmClient, process: subprocess.Popen[bytes] | None = None, sockets: Path | None = None
    ) -> None:
        self.client = client
        self._process = process
        self._sockets = sockets
        """Directory in which the server's processes find each other."""
        self._names_of_others: set[Path] = set()
        """In shared memory, seen before and not the server's."""

    @property
    def is_joined(self) -> bool:
        return self._process is None

    @classmethod
    def start(cls, settings: ServerSettings) -> VllmServer:
        """Returns when the server is ready; who started this worker limits the time (runtime.start_seconds)."""
        port, token = _free_port(), secrets.token_urlsafe(32)
        command = [_interpreter(settings.engine), "-m", "vllm.entrypoints.openai.api_server"]
        command += settings.arguments(port)
        print("starting", " ".join(command), flush=True)
        sockets = Path(tempfile.mkdtemp(prefix="freerun-vllm-"))
        environment = settings.environment(token) | {"VLLM_RPC_BASE_PATH": str(sockets)}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        server = cls(VllmClient(f"127.0.0.1:{port}", token=token), process, sockets)
        try:
            server._wait_until_ready()
        except BaseException:
            server.end()
            raise
        return server

    def _wait_until_ready(self) -> None:
        began = shown = time.monotonic()
        while not self.client.is_healthy():
            self.check()
            now = time.monotonic()
            if now - shown > PROGRESS_SECONDS:
                print(f"the vLLM server has been starting for {now - began:.0f} s", flush=True)
                shown = now
            time.sleep(POLL_SECONDS)
        print(f"the vLLM server is ready after {time.monotonic() - began:.0f} s", flush=True)

    @classmethod
    def join(cls, address: str, *, max_sequence_tokens: int) -> VllmServer:
        """Take over a server that was started as docs/vllm.md says, with whatever a predecessor left in it."""
        _require_own_host(address)
        server = cls(VllmClient(address, token=os.environ.get(TOKEN_VARIABLE, "")))
        longest = server.client.max_sequence_tokens()
        if longest < max_sequence_tokens:
            raise WorkerError(
                f"the vLLM server at {address} takes sequences of {longest} tokens, the run needs "
                f"{max_sequence_tokens}; start it with --max-model-len {max_sequence_tokens}"
            )
        server.client.abort_all()
        server.client.resume()
        server.client.clear_prefix_cache()
        return server

    def warm_up(self) -> None:
        """Sample a little: the first step takes many times a later one, and all processes are connected after it.

        What connected them then needs no name any more. It is removed, so that a server that is killed leaves
        nothing behind; and killed is how it ends.
        """
        sampling = {"max_tokens": 2, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}
        self.client.generate("freerun-warm-up", [0], sampling, "warm up")
        self._remove_names()

    def _remove_names(self) -> None:
        """What the server's processes found each other by."""
        if self._process is None or self._sockets is None or not self._sockets.exists():
            return
        with contextlib.suppress(WorkerError):  # one that does not answer keeps its file
            if self.client.is_healthy():
                self.client.remove_rendezvous()
        shutil.rmtree(self._sockets)
        self._sweep()

    def _sweep(self) -> None:
        """Remove names in shared memory: what the server maps it keeps, and nothing is left when it is killed.

        Not only once: libraries make semaphores when they first need them. Reading what processes map takes
        milliseconds, so it is done only when there is a new name.
        """
        names = {path for path in SHARED_MEMORY.glob("*") if path.name.startswith(PYTHON_NAMES)}
        if names <= self._names_of_others:
            return
        mapped = {inode for process in self._processes() for inode in _mapped_inodes(process.pid)}
        own = {path for path in names if _inode(path) in mapped}
        for path in own:
            path.unlink(missing_ok=True)
        self._names_of_others = names - own

    def _processes(self) -> list[psutil.Process]:
        """The server and all that it started; empty for one that is joined or gone."""
        if self._process is None or self._process.poll() is not None:
            return []
        server = psutil.Process(self._process.pid)
        return [server, *server.children(recursive=True)]

    def end(self) -> None:
        """Kill a server of ours: it would go on printing errors after the reason for the worker's end.

        One that was never ready loses its names first.
        """
        self._remove_names()
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def check(self) -> None:
        """Raise if the server is a child of ours and has ended; once its processes are connected, remove names."""
        if self._sockets is not None and not self._sockets.exists():
            self._sweep()
        if self._process is not None and (status := self._process.poll()) is not None:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise WorkerError(f"the vLLM server (pid {self._process.pid}) {how}; this log has what it printed")


def _mapped_inodes(pid: int) -> set[int]:
    """Of the files in shared memory that a process has mapped.

    Not their names: who makes a semaphore has mapped it under another one that is gone (glibc's sem_open links the
    file to its name when it is filled).
    """
    with contextlib.suppress(OSError):  # it may have ended
        maps = Path(f"/proc/{pid}/maps").read_text()
        return {int(inode) for inode in re.findall(rf" (\d+) +{SHARED_MEMORY}/", maps)}
    return set()


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _require_own_host(address: str) -> None:
    """Refuse a server of another machine: it could not map the memory that the weights are in."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(place)
    except OSError as error:
        raise WorkerError(
            f'engine.addresses: "{host}" of {address} is not this machine ({error}), and a vLLM server reads '
            "weights from the memory of its own; name a server of this machine, or let freerun start them"
        ) from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
