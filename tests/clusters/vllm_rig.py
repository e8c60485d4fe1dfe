"""One vLLM server, started as docs/vllm.md says, and pools whose worker joins it: what is slow happens once."""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tiny_models import random_weights

from freerun.backends.vllm.client import VllmClient
from freerun.backends.vllm.server import PLUGIN_DIRECTORY, TOKEN_VARIABLE, _free_port
from freerun.config.engine import EngineConfig
from freerun.config.lora import LoraConfig
from freerun.config.recipe import RuntimeConfig
from freerun.data.tasks import alphabet_of
from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder
from freerun.model.decoder_config import read_config
from freerun.model.tiny import make_tiny
from freerun.processes.link import WorkerJob
from freerun.processes.local import LocalLauncher
from freerun.types import Completion, EngineStats, Request
from freerun.weights.buffers import create_buffers, shared_route
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedMemoryChannel
from freerun.workers.messages import FromRollout, StartEngine
from freerun.workers.rollout_pool import RolloutPool

MAX_TOKENS = 2048
# vLLM's attention on CPUs takes heads of 32 and more.
SIZES = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "intermediate_size": 48}


def make_model(directory: Path, **sizes: int) -> Path:
    make_tiny(directory, alphabet=alphabet_of("euclid"), seed=5, **SIZES | sizes)
    return directory


@contextmanager
def served(model: Path, log_path: Path) -> Iterator[str]:
    """The address of a server with the model's own weights; its token is in our environment."""
    port = _free_port()
    os.environ[TOKEN_VARIABLE] = secrets.token_urlsafe()
    environment = os.environ | {
        "PYTHONPATH": str(PLUGIN_DIRECTORY),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    command = f"""-m vllm.entrypoints.openai.api_server --model {model} --host 127.0.0.1 --port {port}
        --dtype float32 --max-model-len {MAX_TOKENS} --max-num-seqs 8 --kv-cache-memory-bytes 16000000
        --block-size 32 --no-enable-chunked-prefill --max-num-batched-tokens {MAX_TOKENS} --enforce-eager
        --no-async-scheduling --logprobs-mode processed_logprobs --generation-config vllm
        --enable-scale-out --worker-extension-cls freerun_vllm_plugin.WeightReader
        --middleware freerun_vllm_plugin.RequireToken"""
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *command.split()], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    client = VllmClient(f"127.0.0.1:{port}", token=os.environ[TOKEN_VARIABLE])
    try:
        deadline = time.monotonic() + 180
        while not client.is_healthy():
            assert process.poll() is None, f"the server ended:\n{log_path.read_text()[-4000:]}"
            assert time.monotonic() < deadline, f"waited 180 s for vLLM to start:\n{log_path.read_text()[-4000:]}"
            time.sleep(0.5)
        yield client.address
    finally:
        # It clears away its shared memory if it may; its processes are ended in any case.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@dataclass
class Rig:
    """A pool with one worker, and the trainer's side of its weights."""

    pool: RolloutPool
    shared: SharedMemoryChannel
    model: Path
    deaths: list[str]
    address: str

    async def publish(self, version: int) -> None:
        await self.pool.load(self.shared.publish(version, random_weights(version, read_config(self.model)))())

    @property
    def stats(self) -> EngineStats:
        return self.pool.stats()[0]

    async def until(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 60
        while not happened():
            assert time.monotonic() < deadline, f"waited 60 s for {what}"
            await asyncio.sleep(0.02)

    async def until_sampled(self, num_tokens: int) -> None:
        """Until that many more tokens have been sampled; asks the server, since a report may be a second old."""
        client = VllmClient(self.address, token=os.environ[TOKEN_VARIABLE])
        goal = client.counters().num_tokens + num_tokens
        await self.until(lambda: client.counters().num_tokens >= goal, f"{num_tokens} tokens")


@asynccontextmanager
async def rig_of(
    model: Path, logs: Path, *addresses: str, kv_on_load: str = "recompute", publishes: bool = True
) -> AsyncIterator[Rig]:
    """Without weights the worker takes those of the model's directory, as for `freerun eval`."""
    engine = EngineConfig(
        backend="vllm",
        num_slots=8,
        cache_tokens=4096,
        addresses=addresses,
        kv_on_load=kv_on_load,  # type: ignore[arg-type]
    )
    buffers, deaths = create_buffers("test"), []
    with torch.device("meta"):
        layout = WeightLayout(Decoder(read_config(model)))
    launcher = LocalLauncher(logs, {}, weights=shared_route(buffers) if publishes else None)
    pool = RolloutPool(
        spawn=lambda index: launcher.launch(
            WorkerJob(
                f"rollout-{index}", "rollout", "freerun.workers.guarded_rollout_worker", weights=launcher.weights
            ),
            FromRollout,
        ),
        start_message=StartEngine(
            model_directory=str(model),
            engine=engine,
            max_sequence_tokens=MAX_TOKENS,
            seed=3,
            lora=LoraConfig(),
            base_directory=str(model),
            weights=launcher.weights,
        ),
        num_workers=1,
        config=RuntimeConfig(max_worker_restarts=0),
        on_report=lambda worker, stats: None,
        on_death=lambda worker, reason, is_restarted: deaths.append(reason),
    )
    try:
        await pool.start()
        yield Rig(pool, SharedMemoryChannel(buffers, layout), model, deaths, *addresses)
    finally:
        await pool.close()
        await launcher.close()


def full_forward_logprobs(
    model: Path, version: int, request: Request, completion: Completion, *, top_k: int = 0
) -> np.ndarray:
    """The logprob of each of the completion's tokens by the weights of one version, all computed at once."""
    decoder = Decoder(read_config(model))
    decoder.load_state_dict(random_weights(version, decoder.config))
    tokens = [*request.prompt_token_ids.tolist(), *completion.token_ids.tolist()]
    with torch.no_grad():
        logits = full_forward_logits(decoder, tokens)[len(request.prompt_token_ids) - 1 : -1]
    logits /= request.sampling.temperature
    if top_k:
        logits[logits < logits.topk(top_k).values[:, -1:]] = -torch.inf
    chosen = torch.tensor(completion.token_ids.tolist())[:, None]
    return logits.log_softmax(-1).gather(1, chosen)[:, 0].numpy()
