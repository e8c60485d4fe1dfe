"""vLLM's own OpenAI server in front of a simulated engine: only its engine core is replaced.

    vllm_server.py MODEL PORT REPLY

Its API process has everything else it has in production: uvicorn with uvloop, FastAPI, validation, chat template,
tokenizer, `AsyncLLM` with its output processor and detokenizer. The core runs in this process and answers at once,
so the messages between the two processes, which vLLM also pays for, are left out.
"""

import asyncio
import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

import uvloop
from serving import report_when_up
from transformers import AutoTokenizer
from vllm.entrypoints.launchers.api_server.entry import run_server
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.core_client import EngineCoreClient


class SimulatedCore:
    """What `AsyncLLM` asks of its engine core; all requests that wait are answered in one step."""

    engine_ranks_managed = (0,)
    resources = SimpleNamespace(engine_dead=False)

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids
        self._waiting: list[EngineCoreOutput] = []
        self._has_work = asyncio.Event()

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        output = EngineCoreOutput(
            request_id=request.request_id, new_token_ids=self._token_ids, finish_reason=FinishReason.STOP
        )
        self._waiting.append(output)
        self._has_work.set()

    async def get_output_async(self) -> EngineCoreOutputs:
        await self._has_work.wait()
        self._has_work.clear()
        outputs, self._waiting = self._waiting, []
        return EngineCoreOutputs(outputs=outputs)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        pass

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def reset_mm_cache_async(self) -> None:
        pass

    def shutdown(self, timeout: float | None = None) -> None:
        pass


def main() -> None:
    model, port, reply = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(model)
    token_ids = [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]

    def simulated(**_: Any) -> SimulatedCore:
        return SimulatedCore(token_ids)

    EngineCoreClient.make_async_mp_client = simulated
    arguments = [
        "--model", model, "--served-model-name", "policy", "--host", "127.0.0.1", "--port", port,
        "--dtype", "float32", "--enforce-eager", "--max-model-len", "8192",
        "--disable-log-stats", "--disable-uvicorn-access-log", "--uvicorn-log-level", "warning",
    ]  # fmt: skip
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    validate_parsed_serve_args(args)
    report_when_up(int(port))
    uvloop.run(run_server(args))


if __name__ == "__main__":
    main()
