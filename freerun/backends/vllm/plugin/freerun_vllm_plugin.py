"""freerun's part inside a vLLM server: reads published weights in place, and requires a token.

    freerun's worker ──HTTP: /collective_rpc──► WeightReader ──mmap──► the buffer that the trainer published

One self-contained file, because the server may run in another environment; its directory is put on the server's
path. It imports neither freerun nor vLLM. vLLM mixes `WeightReader` into its worker class
(`--worker-extension-cls`) and puts `RequireToken` in front of every endpoint (`--middleware`).
"""

import contextlib
import json
import math
import mmap
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any

import torch
import xxhash


class WeightReader:
    """Methods for vLLM's worker, called through `/collective_rpc`; the prefix avoids clashes with its names."""

    def freerun_read_weights(
        self, path: str, version: int, checksum: str, num_bytes: int, tensors: list[Any]
    ) -> dict[str, Any]:
        """Load the tensors, (name, dtype, shape, offset) each, from the file at `path`.

        The checksum is computed here, over the bytes to load. Nothing is loaded if it differs, or if the model has
        layers without tensors, which vLLM would leave as they are.
        """
        with open(path, "rb") as file:
            # Private, hence writable for torch; nothing writes, so no page is ever copied.
            memory = mmap.mmap(file.fileno(), num_bytes, flags=mmap.MAP_PRIVATE)
        actual = str(xxhash.xxh3_64(memory, seed=version).hexdigest())
        model = self.model_runner.get_model()  # type: ignore[attr-defined]
        without = _layers(name for name, _ in model.named_parameters()) - _layers(name for name, *_ in tensors)
        if actual == checksum and not without:
            self.reload_weights(weights_iterator=_views(memory, tensors))  # type: ignore[attr-defined]
            _repack_head(model)
        return {"version": version, "checksum": actual, "missing": min(without, default="")}

    def freerun_remove_rendezvous(self) -> None:
        """Remove the file through which the server's processes met; a killed server would leave it behind."""
        method: str = self.distributed_init_method  # type: ignore[attr-defined]
        if method.startswith("file://"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(method.removeprefix("file://"))


def _views(memory: mmap.mmap, tensors: list[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, dtype, shape, offset in tensors:
        flat = torch.frombuffer(memory, dtype=getattr(torch, dtype), count=math.prod(shape), offset=offset)
        yield name, flat.view(shape)


def _layers(names: Iterable[str]) -> set[str]:
    return {found.group() for name in names if (found := re.match(r"model\.layers\.\d+", name))}


def _repack_head(model: torch.nn.Module) -> None:
    """Renew the packed copy of the head's weights that vLLM's CPU kernels keep.

    A head that is tied to the embedding has no weights to load, so vLLM leaves its copy as it was and would keep
    computing logits with the weights that the server was started with.
    """
    head: Any = getattr(model, "lm_head", None)
    if hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)


Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Any, Send], Awaitable[None]]


class RequireToken:
    """Refuses every request without the token; vLLM's --api-key leaves the endpoints for weights open."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ['FREERUN_VLLM_TOKEN']}".encode()

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_known(scope):
            await self._app(scope, receive, send)
            return
        body = json.dumps({"error": "this server belongs to a freerun run"}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _is_known(self, scope: Scope) -> bool:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        return secrets.compare_digest(given, self._expected)
