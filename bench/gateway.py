"""The gateway on one core: chat calls per second vs. LiteLLM's proxy and vLLM's own server, and its memory.

    clients on one core ─► server on another ─► a simulated engine, which answers at once

Conversations of ten turns; each call sends the whole history. Ours and vLLM's tokenise it, with the tokenizer of
SmolLM2 and the chat template of Qwen3, which takes several times as long as SmolLM2's own (that is used if Qwen3's
is not in $FREERUN_DATA/chat_templates). LiteLLM's proxy does not: it passes requests on to a server that always
says the same, which shares the clients' core. The server's core is the limit: every process of a side is bound to
it.
"""

import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from bench.environments import LITELLM, litellm, vllm
from bench.harness import ROOT, Result, Side, alternately, record, show
from bench.models import smollm2

NUM_CONNECTIONS = 32
NUM_TURNS = 10
SECONDS = 5.0
OPEN_SESSIONS, OPEN_TURNS = 10_000, 3
REPLY = "What matters most is the number in the question, since the next answer is computed from it alone."
MASTER_KEY = f"sk-{secrets.token_hex(32)}"
"""LiteLLM's proxy does not start without one."""
SETTINGS: dict[str, Any] = {
    "connections": NUM_CONNECTIONS,
    "turns": NUM_TURNS,
    "seconds": SECONDS,
    "tokenizer": "SmolLM2",
}
TEMPLATE = "chat_templates/hf_qwen3.jinja"


class ServedModel(NamedTuple):
    """What the servers load of a model: its tokenizer and its chat template."""

    directory: Path
    template: str
    """Whose it is."""


def measure(repetitions: int) -> None:
    with ExitStack() as sides:
        model = served_model(Path(sides.enter_context(tempfile.TemporaryDirectory(prefix="freerun-gateway-"))))
        bench = _Bench(sides, model.directory)
        gateway = bench.serve("gateway_server.py", str(model.directory), "PORT", REPLY)
        environment = {"LITELLM_MASTER_KEY": MASTER_KEY}
        proxy = bench.serve(
            "litellm_server.py", "PORT", str(bench.upstream()), python=litellm(), environment=environment
        )
        server = bench.serve("vllm_server.py", str(model.directory), "PORT", REPLY, python=vllm())
        ours, of_proxy, of_server = alternately(
            bench.rate(gateway), bench.rate(proxy, MASTER_KEY), bench.rate(server), repetitions=repetitions
        )
        megabytes = [bench.megabytes_of_open_sessions() for _ in range(repetitions)]
    record("gateway", *_results(ours, of_proxy, of_server, megabytes, template=model.template))


def served_model(scratch: Path) -> ServedModel:
    """SmolLM2 with the template of Qwen3, in a directory of its own, or with its own if that is not at hand."""
    source, template = smollm2(), qwen3_template()
    if template is None:
        return ServedModel(source, "SmolLM2")
    directory = scratch / "model"
    directory.mkdir()
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            (directory / path.name).symlink_to(path)  # half a gigabyte, which no server reads
        else:
            shutil.copy(path, directory)
    shutil.copyfile(template, directory / "chat_template.jinja")
    return ServedModel(directory, "Qwen3")


def qwen3_template() -> Path | None:
    """Where the data sets are: $FREERUN_DATA, else data/ or a shared/data beside the project."""
    given = os.environ.get("FREERUN_DATA")
    places = [Path(given)] if given else [ROOT / "data", ROOT.parent / "shared/data"]
    return next((place / TEMPLATE for place in places if (place / TEMPLATE).exists()), None)


class _Bench:
    """The servers and the clients, each on its core."""

    def __init__(self, sides: ExitStack, model: Path) -> None:
        self._sides = sides
        self._model = model
        self._servers_core, *others = sorted(os.sched_getaffinity(0))
        self._clients_core = others[0] if others else self._servers_core
        self._clients = sides.enter_context(Side("chat_load.py", cores=(self._clients_core,)))

    def serve(self, script: str, *arguments: str, **settings: Any) -> int:
        """The port of a server that is up."""
        port = _free_port()
        given = [str(port) if argument == "PORT" else argument for argument in arguments]
        show(f"  starting {script}")
        self._sides.enter_context(Side(script, *given, cores=(self._servers_core,), **settings))
        return port

    def upstream(self) -> int:
        """The port of what LiteLLM's proxy is put in front of."""
        port = _free_port()
        self._sides.enter_context(Side("instant_server.py", str(port), REPLY, cores=(self._clients_core,)))
        return port

    def rate(self, port: int, key: str = "") -> Callable[[], float]:
        work = {"port": port, "num_connections": NUM_CONNECTIONS, "num_turns": NUM_TURNS, "seconds": SECONDS}

        def calls_per_second() -> float:
            return float(self._clients.ask(**work, key=key)["calls_per_second"])

        return calls_per_second

    def megabytes_of_open_sessions(self) -> float:
        """Resident memory of a new gateway that holds all of its sessions."""
        port = _free_port()
        with Side("gateway_server.py", str(self._model), str(port), REPLY, cores=(self._servers_core,)) as gateway:
            work = {"port": port, "num_connections": NUM_CONNECTIONS, "num_turns": OPEN_TURNS}
            self._clients.ask(**work, num_conversations=OPEN_SESSIONS)
            megabytes = float(gateway.ask()["resident_bytes"] / 1e6)
        show(f"  {OPEN_SESSIONS} open sessions: {megabytes:.0f} MB")
        return megabytes


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _results(
    ours: list[float], proxy: list[float], server: list[float], megabytes: list[float], *, template: str
) -> tuple[Result, ...]:
    claim = f"gateway, chat calls/s on one core, simulated engine, conversations of {NUM_TURNS} turns"
    settings = {**SETTINGS, "chat template": template}
    note = f"SmolLM2's tokenizer with the chat template of {template}."
    return (
        Result(claim, f"LiteLLM {LITELLM.partition('==')[2]} proxy", 5, 10, "x", ours, proxy, settings=settings),
        Result(claim, "vLLM 0.32.0 server", 2, 3, "x", ours, server, settings=settings),
        Result(claim, "", 1500, 2500, "/s", ours, [], settings=settings, note=note),
        Result(
            f"gateway, memory with {OPEN_SESSIONS:,} open sessions of {OPEN_TURNS} turns",
            "",
            1000,
            500,
            " MB",
            megabytes,
            [],
            lower_is_better=True,
            note="The whole process, without that of the chat template.",
        ),
    )
