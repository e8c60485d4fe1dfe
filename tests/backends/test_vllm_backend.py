"""What of the vLLM backend can be checked without vLLM: settings, errors, names of weights, the plugin."""

import asyncio
import dataclasses
import http.server
import importlib.util
import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tiny_models import TINY, random_model, random_weights
from tiny_runs import make_run, recipe_of

from freerun.backends.vllm import client as vllm_client
from freerun.backends.vllm import server as vllm_server
from freerun.backends.vllm.backend import require_packages
from freerun.backends.vllm.client import VllmClient
from freerun.backends.vllm.server import PLUGIN_DIRECTORY, ServerSettings, VllmServer
from freerun.backends.vllm.weights import ServerChannel
from freerun.cli.main import main
from freerun.config.engine import EngineConfig
from freerun.config.lora import LoraConfig
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ConfigError, WorkerError
from freerun.model.attention import full_forward_logits
from freerun.model.checkpoint import to_hugging_face
from freerun.model.decoder import Decoder
from freerun.model.lora import add_adapter, merged_state, trained_parameters
from freerun.session.build import check_backends, check_model
from freerun.weights.buffers import create_buffers
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedMemoryChannel


def plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "freerun_vllm_plugin", PLUGIN_DIRECTORY / "freerun_vllm_plugin.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """An interpreter in whose environment no package is found."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_missing_vllm_is_named_with_the_command_before_anything_starts(tmp_path: Path, bare_python: str) -> None:
    with pytest.raises(ConfigError) as error:
        require_packages(EngineConfig(backend="vllm", server_python=bare_python))
    assert str(error.value) == (
        f'engine.backend = "vllm" needs vLLM, which {bare_python} does not have; make backends (CPU) or '
        "pip install 'freerun[vllm]' (GPU), or set engine.backend = \"native\""
    )
    joined = ("--engine.backend", "vllm", "--engine.addresses", "127.0.0.1:1")
    check_backends(recipe_of(make_run(tmp_path), *joined))


def test_an_interpreter_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match=r'engine.server_python = "/no/python" is no Python interpreter'):
        require_packages(EngineConfig(backend="vllm", server_python="/no/python"))


def test_dry_run_and_run_refuse_a_missing_vllm(
    tmp_path: Path, bare_python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_run(tmp_path, hidden_size=128)
    arguments = ["train", str(recipe), "--engine.backend", "vllm", "--engine.server_python", bare_python]
    assert main([*arguments, "--dry-run"]) != 0
    assert "needs vLLM" in capsys.readouterr().err
    assert main(arguments) != 0
    assert "needs vLLM" in capsys.readouterr().err


def test_an_interpreter_by_a_relative_path_is_found_from_the_users_directory(
    bare_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(bare_python).parent)
    with pytest.raises(ConfigError, match=f"needs vLLM, which {bare_python} does not have"):
        require_packages(EngineConfig(backend="vllm", server_python="./python"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("--engine.addresses", "127.0.0.1"), '"127.0.0.1" is not host:port, such as'),
        (("--engine.addresses", "http://127.0.0.1:80"), "is not host:port, such as"),
        (("--engine.addresses", "h:1,h:1", "--engine.num_workers", "2"), r"names a server twice \(h:1, h:1\)"),
        (("--engine.addresses", "h:1", "--runtime.backend", "ray"), 'but runtime.backend = "ray"'),
        (("--engine.kv_on_load", "drain"), 'engine.kv_on_load = "drain", but engine.backend = "vllm"'),
        (("--sampling.temperature", "0.005"), "sampling.temperature = 0.005 would be raised by vLLM to 0.01"),
    ],
    ids=["no port", "a url", "twice", "ray", "drain", "cold"],
)
def test_settings_that_vllm_cannot_keep_are_refused(
    tmp_path: Path, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_backends(recipe_of(make_run(tmp_path), "--engine.backend", "vllm", *overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("--engine.addresses", "h:1"), 'engine.addresses is set, but engine.backend = "native" has no server'),
        (("--engine.server_python", "python3"), "engine.server_python is set"),
        (("--engine.num_gpus", "2"), "engine.num_gpus = 2, but the embedded engine computes on one"),
    ],
    ids=["joins", "starts", "splits"],
)
def test_the_embedded_engine_refuses_settings_of_servers(
    tmp_path: Path, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_backends(recipe_of(make_run(tmp_path), *overrides))


def test_a_server_of_another_machine_is_not_joined() -> None:
    with pytest.raises(WorkerError, match=r'"192.0.2.1" of 192.0.2.1:8123 is not this machine'):
        VllmServer.join("192.0.2.1:8123", max_sequence_tokens=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_heads_that_vllm_cannot_serve_on_a_cpu_are_refused_with_their_size(tmp_path: Path) -> None:
    recipe = recipe_of(make_run(tmp_path), "--engine.backend", "vllm")
    with pytest.raises(ConfigError, match=r'has attention heads of 8; .* set engine.backend = "native"'):
        check_model(recipe, Tokenizer.load(tmp_path / "model"), tmp_path / "model")


def test_the_plan_says_which_servers_there_will_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = make_run(tmp_path)
    joined = ["--engine.backend", "vllm", "--engine.addresses", "127.0.0.1:8123"]
    assert main(["train", str(recipe), *joined, "--dry-run"]) == 0
    assert "rollout-0: the vLLM server at 127.0.0.1:8123, 16 slots" in capsys.readouterr().out


def settings_of(**changes: Any) -> ServerSettings:
    values: dict[str, Any] = {
        "engine": EngineConfig(backend="vllm"),
        "model_config": TINY,
        "max_sequence_tokens": 100,
    }
    values |= {"model_directory": Path("model"), "loads_weights": True, "num_threads": 1} | changes
    return ServerSettings(**values)


def test_the_cache_has_room_for_what_was_asked_but_not_for_more_than_the_slots_can_use() -> None:
    block_bytes = 32 * 2 * 2 * 2 * 8 * 4
    small = settings_of(engine=EngineConfig(backend="vllm", num_slots=4, cache_tokens=160))
    assert small.cache_bytes == (1 + 5 + 4) * block_bytes
    wide = settings_of(engine=EngineConfig(backend="vllm", num_slots=4))
    assert wide.cache_bytes == (1 + 4 * 4) * block_bytes
    half = settings_of(engine=EngineConfig(backend="vllm", num_slots=4, dtype="bfloat16"))
    assert half.cache_bytes == wide.cache_bytes // 2


def test_the_users_arguments_come_last_and_the_token_is_not_among_them() -> None:
    settings = settings_of(engine=EngineConfig(backend="vllm", server_arguments=("--tensor-parallel-size=2",)))
    arguments = settings.arguments(8123)
    assert arguments[-1] == "--tensor-parallel-size=2"
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    environment = settings.environment("secret")
    assert "secret" not in " ".join(arguments)
    assert environment[vllm_server.TOKEN_VARIABLE] == "secret"


def test_a_server_that_fails_to_start_leaves_no_directory(
    tmp_path: Path, bare_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(WorkerError, match="ended with status 1"):
        VllmServer.start(settings_of(engine=EngineConfig(backend="vllm", server_python=bare_python)))
    assert not list(tmp_path.glob("freerun-vllm-*"))


class StubbornServer(http.server.BaseHTTPRequestHandler):
    """Says of everything that it did not succeed."""

    def do_POST(self) -> None:
        body = b'{"success": false}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_prefix_cache_that_is_not_cleared_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_client, "CLEAR_SECONDS", 0.1)
    with http.server.HTTPServer(("127.0.0.1", 0), StubbornServer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        client = VllmClient(f"127.0.0.1:{server.server_port}")
        with pytest.raises(WorkerError, match="did not clear its prefix cache"):
            client.clear_prefix_cache()
        server.shutdown()
        thread.join(10)


def test_each_server_sees_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def gpus(visible: str | None, **engine: Any) -> list[str]:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        config = EngineConfig(backend="vllm", **engine)
        servers = [settings_of(engine=config, worker_index=index) for index in range(2)]
        return [server.environment("")["CUDA_VISIBLE_DEVICES"] for server in servers]

    assert gpus(None) == ["0", "1"]
    assert gpus(None, num_gpus=2) == ["0,1", "2,3"]
    assert gpus("4,5,6,7", num_gpus=2) == ["4,5", "6,7"]
    assert gpus("3", num_gpus=1) == ["3", "3"], "a worker of Ray takes what it was given"
    assert gpus("", num_gpus=1) == ["", ""]
    assert gpus("4,5", device="cpu") == ["", ""]


def test_a_server_on_cores_of_its_own_is_bound_to_them_and_another_is_not() -> None:
    cores = sorted(os.sched_getaffinity(0))
    bound = settings_of(num_threads=len(cores)).environment("")["VLLM_CPU_OMP_THREADS_BIND"]
    assert bound == ",".join(map(str, cores))
    assert settings_of(num_threads=len(cores) + 1).environment("")["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


class FakeWorker:
    """vLLM's worker as far as the plugin calls it."""

    def __init__(self) -> None:
        self.loaded: dict[str, torch.Tensor] = {}
        self.model_runner = self
        self.model = torch.nn.Module()

    def reload_weights(self, weights_iterator: Any) -> None:
        self.loaded = {name: tensor.clone() for name, tensor in weights_iterator}

    def get_model(self) -> torch.nn.Module:
        return self.model


def test_the_plugin_reads_every_tensor_under_its_hugging_face_name_and_refuses_other_bytes() -> None:
    model = random_model(3)
    layout = WeightLayout(model)
    channel = ServerChannel(SharedMemoryChannel(create_buffers("test"), layout), layout, model.config)
    readable = channel.readable(channel.publish(3, random_weights(3))())
    arguments = {name: getattr(readable, name) for name in ("path", "version", "checksum", "num_bytes", "tensors")}
    reader = type("Worker", (FakeWorker, plugin().WeightReader), {})()
    assert reader.freerun_read_weights(**arguments) == {"version": 3, "checksum": readable.checksum, "missing": ""}
    expected = to_hugging_face(random_weights(3), TINY)
    assert reader.loaded.keys() == expected.keys()
    assert all(torch.equal(reader.loaded[name], tensor) for name, tensor in expected.items())

    other = type("Worker", (FakeWorker, plugin().WeightReader), {})()
    assert other.freerun_read_weights(**arguments | {"checksum": "0" * 16})["checksum"] == readable.checksum
    assert other.loaded == {}

    deeper = type("Worker", (FakeWorker, plugin().WeightReader), {})()
    deeper.model.register_module("model", torch.nn.ModuleDict({"layers": torch.nn.ModuleList()}))
    deeper.model.get_submodule("model.layers").extend(torch.nn.Linear(1, 1) for _ in range(TINY.num_layers + 1))
    assert deeper.freerun_read_weights(**arguments)["missing"] == f"model.layers.{TINY.num_layers}"
    assert deeper.loaded == {}


def test_the_plugin_reads_bfloat16_as_it_was_published() -> None:
    model = random_model(3)
    layout = WeightLayout(model, torch.bfloat16)
    channel = ServerChannel(SharedMemoryChannel(create_buffers("test"), layout), layout, model.config)
    published = channel.publish(3, random_weights(3))()
    reader = type("Worker", (FakeWorker, plugin().WeightReader), {})()
    reader.freerun_read_weights(**dataclasses.asdict(channel.readable(published)))
    expected = to_hugging_face(random_weights(3), TINY)
    assert {tensor.dtype for tensor in reader.loaded.values()} == {torch.bfloat16}
    assert all(torch.equal(reader.loaded[name], tensor.bfloat16()) for name, tensor in expected.items())
    logits_TV = full_forward_logits(channel.model(published), [1, 2, 3]).float()
    exact_TV = full_forward_logits(random_model(3), [1, 2, 3])
    torch.testing.assert_close(logits_TV, exact_TV, atol=0.1, rtol=0.1)


def test_the_plugin_lets_only_those_in_who_know_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    module = plugin()
    monkeypatch.setenv(vllm_server.TOKEN_VARIABLE, "secret")
    statuses: list[int] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    guarded = module.RequireToken(application)
    for headers in ([], [(b"authorization", b"Bearer guess")], [(b"authorization", b"Bearer secret")]):
        asyncio.run(guarded({"type": "http", "headers": headers}, None, send))
    assert statuses == [401, 401, 200]


def test_an_adapter_merged_for_vllm_computes_what_it_computes_beside_its_base() -> None:
    model = random_model(1)
    add_adapter(model, LoraConfig(rank=4), seed=2)
    generator = torch.Generator().manual_seed(5)
    for parameter in trained_parameters(model).values():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    plain = Decoder(TINY)
    plain.load_state_dict(merged_state(model))
    tokens = [1, 5, 2, 8, 8, 3]
    with torch.no_grad():
        torch.testing.assert_close(full_forward_logits(plain, tokens), full_forward_logits(model, tokens))
        assert not torch.allclose(full_forward_logits(random_model(1), tokens), full_forward_logits(model, tokens))


LOCKER = """
import multiprocessing, sys
lock = multiprocessing.get_context("spawn").Lock()
print("/dev/shm/sem." + lock._semlock.name.lstrip("/"), flush=True)
sys.stdin.read()
"""


def test_a_semaphore_that_the_server_makes_while_it_serves_leaves_no_name(tmp_path: Path) -> None:
    def start() -> tuple[subprocess.Popen[bytes], Path]:
        command = [sys.executable, "-c", LOCKER]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().decode().strip())

    process, name = start()
    stranger, name_of_another = start()
    try:
        assert name.exists()
        VllmServer(VllmClient("127.0.0.1:1", token=""), process, tmp_path / "connected and removed").check()
        assert not name.exists()
        assert name_of_another.exists()
    finally:
        for one in (process, stranger):
            one.communicate(timeout=30)
    assert not name_of_another.exists()
