"""`freerun serve`: a policy behind the APIs of OpenAI and Anthropic.

A model or a run's checkpoint is served as it is; a recipe, by a run that trains on its clients' feedback.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from freerun.cli.arguments import Parser
from freerun.config.recipe import Recipe
from freerun.config.rollout import GatewayConfig
from freerun.errors import FreerunError

if TYPE_CHECKING:
    from freerun.serving.serve import ServedAt
    from freerun.session.attachments import LiveKey

ADDRESS = "127.0.0.1:8000"
EPILOG = """\
WHAT is a model directory, a run (its newest checkpoint, sampled as in its recipe), or a recipe with
online.feedback_seconds: it is trained on the sessions that clients rate, while they are served.

Clients use POST /v1/chat/completions, /v1/responses or /v1/messages, with the key that is printed. Of a model or
a checkpoint they may choose temperature, top_p and top_k; a run in training samples as its recipe says. max_tokens
and stop are honoured. POST /v1/feedback {"id": ID, "reward": NUMBER} rates the reply of that id. Change a recipe,
or how a model is served, with --section.key value; "freerun train --help" lists the keys. Other users of the
machine can see a key that is given with --key, but not one in the variable FREERUN_KEY.

examples:
  freerun serve models/smollm2
  freerun serve runs/times-tables --version best --address 127.0.0.1:9000
  freerun serve models/smollm2 --address 0.0.0.0:8000 --key my-secret --sampling.max_completion_tokens 512
  freerun serve recipe.toml --online.feedback_seconds 300
  freerun serve runs/recipe --resume
"""


def run(arguments: Sequence[str]) -> int:
    args, overrides = _parser().parse_with_keys(arguments)
    if args.resume or _names_a_recipe(args.target):
        return _train_on_traffic(args, overrides)

    from freerun.serving.serve import run_serve
    from freerun.serving.served_model import make_serve_job

    address = ["--gateway.address", args.address or ADDRESS]
    job = make_serve_job(args.target, [*address, *overrides], version=args.version)
    print(f"starting {job.model}", file=sys.stderr)
    run_serve(job, key=args.key, on_ready=_tell)
    print("stopped", file=sys.stderr)
    return 0


def _names_a_recipe(target: Path) -> bool:
    from freerun.config.shipped import shipped_recipes

    return not target.is_dir() and (target.suffix == ".toml" or str(target) in shipped_recipes())


def _train_on_traffic(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    if args.version is not None:
        raise FreerunError(
            "freerun serve: --version names a checkpoint to serve; a recipe is trained from its newest"
        )

    from freerun.cli.train import read_target, to_start
    from freerun.session.attachments import Attachments, make_key
    from freerun.session.live_server import check_traffic, live_model_name
    from freerun.session.train import EXIT_CODES, train_to_end

    named, overrides = read_target(args.target, overrides, resume=args.resume)
    recipe = _with_address(to_start(named, overrides, resume=args.resume), args.address)
    key = make_key(args.key)
    check_traffic(recipe, key)
    _tell_clients(recipe, live_model_name(recipe), key)
    return EXIT_CODES[train_to_end(recipe, resume=args.resume, attached=Attachments(live_key=key)).outcome]


def _with_address(recipe: Recipe, address: str) -> Recipe:
    """The recipe with its address: from the command line, the recipe, or the default port."""
    if not address and recipe.gateway.address != GatewayConfig.address:
        return recipe
    return dataclasses.replace(recipe, gateway=dataclasses.replace(recipe.gateway, address=address or ADDRESS))


def _tell_clients(recipe: Recipe, model: str, key: LiveKey) -> None:
    """Printed before the run takes over the terminal; the run itself prints its address once it serves."""
    print(f"model    {model}")
    print(f"key      {key.used}")
    rating = '{"id": "chatcmpl-...", "reward": 1}'
    url = f"http://{recipe.gateway.address}/v1/feedback"
    print(f"rate     curl {url} -H 'Authorization: Bearer {key.used}' -d '{rating}'", flush=True)


def _tell(served: ServedAt) -> None:
    body = f'{{"model": "{served.model_name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    print(f"address  {served.base_url}")
    print(f"model    {served.model_name}")
    print(f"key      {served.key}")
    print(f"try      curl {served.base_url}/chat/completions -H 'Authorization: Bearer {served.key}' -d '{body}'")
    print("Ctrl-C stops.", flush=True)


def _parser() -> Parser:
    description = "Serve a model to clients of OpenAI and Anthropic, or train it on what they rate."
    usage = "WHAT [--address HOST:PORT] [--key KEY] [--version N] [--resume] [--section.key value ...]"
    parser = Parser("freerun serve", description, EPILOG, usage=usage)
    take = parser.take
    take("target", "WHAT", "model directory, run or recipe")
    take("--address", "HOST:PORT", f"where to listen; default: {ADDRESS}", type=str, default="")
    take(
        "--key",
        "KEY",
        "clients send it; default: FREERUN_KEY, or a random one",
        type=str,
        default="",
    )
    parser.take_version()
    parser.flag("--resume", "continue to train the run on live traffic, from its newest checkpoint")
    return parser
