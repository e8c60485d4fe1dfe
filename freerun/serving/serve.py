"""`freerun serve`: serves a policy behind the gateway until it is stopped.

The gateway, the chat template and the sessions run in this process, the engines in rollout workers.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from freerun.errors import ConfigError
from freerun.processes.supervision import Supervisor
from freerun.serving.served_model import ServeJob, open_policy
from freerun.session.attachments import make_key
from freerun.session.lifetime import STOP_SIGNALS


@dataclass(frozen=True)
class ServedAt:
    """The connection details for clients."""

    base_url: str
    """For OpenAI clients; Anthropic clients leave out `/v1`."""
    key: str
    model_name: str


def run_serve(job: ServeJob, *, key: str, on_ready: Callable[[ServedAt], None]) -> None:
    """Serve until Ctrl-C, SIGTERM or SIGHUP."""
    with tempfile.TemporaryDirectory(prefix="freerun-serve-") as logs:
        asyncio.run(until_stopped(_serve(job, key, Path(logs), on_ready)))


async def until_stopped(work: Awaitable[None]) -> None:
    """Do the work; the first stop signal ends it without an error."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop() -> None:
        if not stopped.is_set():  # cleaning up is not interrupted: that would leave processes behind
            stopped.set()
            task.cancel()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped.is_set():
            raise


async def _serve(job: ServeJob, key: str, logs: Path, on_ready: Callable[[ServedAt], None]) -> None:
    try:
        from freerun.gateway.address import listen, parse_address
        from freerun.gateway.conversations import Conversations
        from freerun.gateway.server import Gateway
    except ImportError as error:
        raise ConfigError(f"freerun serve needs a web server ({error}); pip install 'freerun[agents]'") from error
    address = job.recipe.gateway.address
    live_key = make_key(key)
    async with open_policy(job, logs) as policy:
        directory = Conversations(job.name, key=live_key.used, open_session=policy.open_session)
        gateway = Gateway(
            directory,
            sampling=policy.sampling,
            address=address,
            key=live_key.used if live_key.is_given else "",
            clients_choose_sampling=True,
        )
        listen(parse_address(address)).close()  # detect a taken port before the model is loaded
        background = Supervisor()
        try:
            await policy.start()
            background.start(policy.wait_for_loss())
            on_ready(ServedAt(await gateway.start(), live_key.used, job.name))
            await background.watch(asyncio.Event().wait())
        finally:
            await gateway.close()
            await background.close()
