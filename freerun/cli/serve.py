"""`freerun serve`: a model or a run's checkpoint behind the APIs of OpenAI and Anthropic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from freerun.cli.arguments import Parser

if TYPE_CHECKING:
    from freerun.session.serve import ServedAt

ADDRESS = "127.0.0.1:8000"
EPILOG = """\
MODEL_OR_RUN is a model directory, or a run (its newest checkpoint, sampled as in its recipe).

Clients use POST /v1/chat/completions, /v1/responses or /v1/messages, with the key that is printed. Their
temperature, top_p, top_k, max_tokens and stop are honoured; what they do not set is as in [sampling]. Change it,
or the engine, with --section.key value; "freerun train --help" lists the keys.

examples:
  freerun serve models/smollm2
  freerun serve runs/times-tables --version 20 --address 127.0.0.1:9000
  freerun serve models/smollm2 --address 0.0.0.0:8000 --key my-secret --sampling.max_completion_tokens 512
"""


def run(arguments: Sequence[str]) -> int:
    args, overrides = _parser().parse_with_keys(arguments)

    from freerun.session.serve import run_serve
    from freerun.session.served_model import make_serve_job

    job = make_serve_job(args.target, ["--gateway.address", args.address, *overrides], version=args.version)
    print(f"starting {job.model}", file=sys.stderr)
    run_serve(job, key=args.key, on_ready=_tell)
    print("stopped", file=sys.stderr)
    return 0


def _tell(served: ServedAt) -> None:
    body = f'{{"model": "{served.model_name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    print(f"address  {served.base_url}")
    print(f"model    {served.model_name}")
    print(f"key      {served.key}")
    print(f"try      curl {served.base_url}/chat/completions -H 'Authorization: Bearer {served.key}' -d '{body}'")
    print("Ctrl-C stops.", flush=True)


def _parser() -> Parser:
    description = "Serve a model to clients of OpenAI and Anthropic."
    usage = "MODEL_OR_RUN [--address HOST:PORT] [--key KEY] [--version N] [--section.key value ...]"
    parser = Parser("freerun serve", description, EPILOG, usage=usage)
    take = parser.take
    take("target", "MODEL_OR_RUN", "model directory or run")
    take("--address", "HOST:PORT", f"where to listen; default: {ADDRESS}", type=str, default=ADDRESS)
    take("--key", "KEY", "what clients send as their API key; default: a random one", type=str, default="")
    take("--version", "N", "the run's checkpoint of this version; default: the newest", type=int)
    return parser
