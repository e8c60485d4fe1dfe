"""The vLLM server of one rollout worker: starts or joins it, and notices when it is ready or gone.

A started server is a child in the worker's process group, so it always ends with the worker, as do the processes
that it starts (`processes/guard.py`, `processes/worker_process.py`). It listens on loopback and requires a token
that no other user can read. Its output goes to the worker's log.
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
from dataclasses import dataclass
from pathlib import Path

import psutil

from freerun.backends.vllm.client import VllmClient
from freerun.config.engine import BYTES, EngineConfig
from freerun.errors import WorkerError
from freerun.model.decoder_config import DecoderConfig

PLUGIN_DIRECTORY = Path(__file__).parent / "plugin"
TOKEN_VARIABLE = "FREERUN_VLLM_TOKEN"
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
BLOCK_TOKENS = 32
"""Tokens per block of the KV cache: vLLM's smallest on CPUs, which wastes least on short sequences."""
POLL_SECONDS = 0.25
PROGRESS_SECONDS = 15.0
SHARED_MEMORY = Path("/dev/shm")
PYTHON_NAMES = ("psm_", "sem.mp-")
"""Prefixes of Python's shared memory and semaphores, whose resource tracker is killed with the server."""


def interpreter(engine: EngineConfig) -> str:
    """The Python interpreter that servers are started with."""
    python = engine.server_python or sys.executable
    # A relative path is relative to the user's directory, wherever it is used; a bare name is looked up.
    return os.path.abspath(python) if os.sep in python else python


@dataclass(frozen=True)
class ServerSettings:
    """The start settings of a server."""

    engine: EngineConfig
    model_directory: Path
    model_config: DecoderConfig
    max_sequence_tokens: int
    loads_weights: bool
    """Whether weights arrive later; if so, it starts with dummy weights."""
    num_threads: int
    worker_index: int = 0

    @property
    def gpus(self) -> str:
        """This worker's GPUs among the visible ones, by the rule of `model/device.py`, for CUDA."""
        if self.engine.device == "cpu":
            return ""
        begin = self.worker_index * self.engine.num_gpus
        wanted = range(begin, begin + self.engine.num_gpus)
        visible = os.environ.get(GPUS_VARIABLE)
        if visible is None:
            return ",".join(map(str, wanted))
        # Under Ray only the worker's own GPUs are visible.
        names = visible.split(",")
        return ",".join(dict.fromkeys(names[index % len(names)] for index in wanted))

    @property
    def cache_bytes(self) -> int:
        """Memory for `engine.cache_tokens`, in whole blocks, and at most what all slots can use."""
        slot_blocks = -(-self.max_sequence_tokens // BLOCK_TOKENS)
        # Each sequence wastes up to a block, and vLLM reserves one.
        asked_blocks = -(-self.engine.cache_tokens // BLOCK_TOKENS) + self.engine.num_slots
        num_blocks = 1 + min(asked_blocks, self.engine.num_slots * slot_blocks)
        return num_blocks * BLOCK_TOKENS * self.model_config.cached_per_token * BYTES[self.engine.dtype]

    def arguments(self, port: int) -> list[str]:
        longest = min(self.max_sequence_tokens, self.model_config.max_positions)
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
            # A token is labelled when its step returns: without async scheduling, with the version of that step.
            "--no-async-scheduling",
            "--enforce-eager",
            # Chunked prompts of samples with a seed crash vLLM 0.32 on CPUs ("CPU Generator does not use offset").
            "--no-enable-chunked-prefill",
            "--max-num-batched-tokens", str(step_tokens),
            "--enable-prefix-caching",
            "--logprobs-mode", "processed_logprobs",
            # Ignore the sampling defaults of the model's directory.
            "--generation-config", "vllm",
            "--enable-scale-out",
            "--worker-extension-cls", "freerun_vllm_plugin.WeightReader",
            "--middleware", "freerun_vllm_plugin.RequireToken",
            "--disable-uvicorn-access-log",
            *(["--load-format", "dummy"] if self.loads_weights else []),
            *self.engine.server_arguments,
        ]  # fmt: skip

    def environment(self, token: str) -> dict[str, str]:
        cores = sorted(os.sched_getaffinity(0))
        # Bind to the worker's cores if it has any; otherwise only limit the number of threads.
        bind = ",".join(map(str, cores)) if len(cores) == self.num_threads else "nobind"
        path = [str(PLUGIN_DIRECTORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "VLLM_CPU_OMP_THREADS_BIND": bind,
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONSAFEPATH": "1",  # do not import modules of the user's directory
            GPUS_VARIABLE: self.gpus,
            TOKEN_VARIABLE: token,
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }


class VllmServer:
    """A started or joined server that answers."""

    def __init__(
        self, client: VllmClient, process: subprocess.Popen[bytes] | None = None, sockets: Path | None = None
    ) -> None:
        self.client = client
        self._process = process
        self._sockets = sockets
        """Directory of the sockets by which the server's processes find each other."""
        self._names_of_others: set[Path] = set()
        """Names in shared memory that were seen before and belong to other processes."""

    @property
    def is_joined(self) -> bool:
        return self._process is None

    @classmethod
    def start(cls, settings: ServerSettings) -> VllmServer:
        """Start a server and return when it is ready; the controller limits the time (runtime.start_seconds)."""
        port, token = _free_port(), secrets.token_urlsafe(32)
        command = [interpreter(settings.engine), "-m", "vllm.entrypoints.openai.api_server"]
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
        """Join a server that was started as docs/vllm.md says, and clear what a predecessor left in it."""
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
        """Sample a few tokens: the first step is much slower than later ones, and connects all processes.

        Then the names by which the processes found each other are removed: a server always ends by being
        killed, and so leaves nothing behind.
        """
        sampling = {"max_tokens": 2, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}
        self.client.generate("freerun-warm-up", [0], sampling, "warm up")
        self._remove_names()

    def _remove_names(self) -> None:
        """Remove the names by which the server's processes found each other."""
        if self._process is None or self._sockets is None or not self._sockets.exists():
            return
        with contextlib.suppress(WorkerError):  # a server that does not answer keeps its file
            if self.client.is_healthy():
                self.client.remove_rendezvous()
        shutil.rmtree(self._sockets)
        self._sweep()

    def _sweep(self) -> None:
        """Unlink the server's shared memory: mappings stay valid, and nothing is left when it is killed.

        Repeated, because libraries create semaphores at first use. Reading the mappings of processes takes
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
        """The server and all its descendants; empty if it was joined or is gone."""
        if self._process is None or self._process.poll() is not None:
            return []
        server = psutil.Process(self._process.pid)
        return [server, *server.children(recursive=True)]

    def end(self) -> None:
        """Kill a started server: it would print errors after the reason for the worker's end.

        Remaining names, if it was never ready, are removed first.
        """
        self._remove_names()
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def check(self) -> None:
        """Raise if a started server has ended; once its processes are connected, remove new names."""
        if self._sockets is not None and not self._sockets.exists():
            self._sweep()
        if self._process is not None and (status := self._process.poll()) is not None:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise WorkerError(f"the vLLM server (pid {self._process.pid}) {how}; this log has what it printed")


def _mapped_inodes(pid: int) -> set[int]:
    """Inodes of the shared-memory files that a process has mapped.

    Names would not suffice: the creator of a semaphore maps it under a temporary one (glibc's sem_open links the
    file to its final name when it is filled).
    """
    with contextlib.suppress(OSError):  # the process may have ended
        maps = Path(f"/proc/{pid}/maps").read_text()
        return {int(inode) for inode in re.findall(rf" (\d+) +{SHARED_MEMORY}/", maps)}
    return set()


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _require_own_host(address: str) -> None:
    """Raise for a server of another machine: it could not map the weights."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(place)
    except OSError as error:
        raise WorkerError(
            f'engine.addresses: "{host}" of {address} is not this machine ({error}), and a vLLM server reads '
            "weights from its machine's memory; name a server of this machine, or let freerun start them"
        ) from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
