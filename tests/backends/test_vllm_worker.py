"""The vLLM worker's process in front of a server that only pretends: what is hard to provoke in a real one."""

import asyncio
import http.server
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_request
from tiny_runs import make_run

from freerun.config.engine import EngineConfig
from freerun.config.lora import LoraConfig
from freerun.processes.link import WorkerJob
from freerun.processes.local import LocalLauncher
from freerun.weights.buffers import create_buffers, shared_route
from freerun.workers.messages import Abort, EngineReady, FromRollout, Generate, Report, StartEngine


class ForgetfulServer(http.server.ThreadingHTTPServer):
    """Samples without end, and does not know the id of the first abort yet."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.has_begun = threading.Event()
        self.is_aborted = threading.Event()
        self.aborted: list[list[str]] = []


class Answers(http.server.BaseHTTPRequestHandler):
    server: ForgetfulServer

    def do_GET(self) -> None:
        models = {"data": [{"max_model_len": 4096}]}
        self._answer({} if self.path == "/metrics" else models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path == "/inference/v1/generate":
            if body["request_id"] != "freerun-warm-up":
                self.server.has_begun.set()
                assert self.server.is_aborted.wait(60), "waited 60 s for an abort of a known id"
            choice = {"token_ids": [], "logprobs": {"content": []}, "finish_reason": "abort"}
            self._answer({"choices": [choice]})
            return
        if self.path == "/inference/v1/abort_requests":
            self.server.aborted.append(body["request_ids"])
            if len(self.server.aborted) > 1:
                self.server.is_aborted.set()
        self._answer({"success": True})

    def _answer(self, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.mark.slow
def test_an_abort_that_overtook_its_request_is_repeated(tmp_path: Path) -> None:
    make_run(tmp_path)

    async def abort(server: ForgetfulServer) -> None:
        launcher = LocalLauncher(tmp_path / "logs", {}, weights=shared_route(create_buffers("test")))
        job = WorkerJob("rollout-0", "rollout", "freerun.workers.guarded_rollout_worker", weights=launcher.weights)
        worker = await launcher.launch(job, FromRollout)
        engine = EngineConfig(backend="vllm", num_slots=2, addresses=(f"127.0.0.1:{server.server_port}",))
        start = StartEngine(
            model_directory=str(tmp_path / "model"),
            engine=engine,
            max_sequence_tokens=64,
            seed=0,
            lora=LoraConfig(),
            base_directory="",
            weights=launcher.weights,
        )
        try:
            async with asyncio.timeout(60):
                worker.send(start)
                assert isinstance(await worker.receive(), EngineReady), worker.describe_end()
                worker.send(Generate(requests=(make_request(1),)))
                assert await asyncio.to_thread(server.has_begun.wait, 30), "waited 30 s for the request"
                worker.send(Abort(request_ids=(1,)))
                assert await asyncio.to_thread(server.is_aborted.wait, 30), "waited 30 s for a second abort"
                while (report := await worker.receive()) is not None:
                    if isinstance(report, Report) and report.stats.num_running == 0:
                        break
                assert report is not None, worker.describe_end()
        finally:
            worker.kill()
            await worker.wait(timeout_seconds=10)
            await launcher.close()

    with ForgetfulServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            asyncio.run(abort(server))
        finally:
            server.shutdown()
            thread.join(10)
    assert server.aborted[0] == server.aborted[1]
