"""Typed calls to one vLLM server: tokens in, tokens out, and what a load of new weights needs.

Every call opens a connection: uvicorn closes idle ones after a few seconds, and a local connection costs a
tenth of a millisecond. It knows HTTP and vLLM's endpoints, but not why a load happens, nor what the samples are
for.
"""

import http.client
import re
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from freerun.errors import RequestError, WorkerError

CALL_SECONDS = 60.0
"""Time limit for a call that computes nothing, on a healthy server."""
LOAD_SECONDS = 300.0
CLEAR_SECONDS = 10.0
UNLABELLED = "default"
"""vLLM's label for weights without a version."""
ID_PREFIX = "generate-tokens-"
"""vLLM's prefix for the request ids of `/inference/v1/generate`."""


class VersionSpan(msgspec.Struct, frozen=True):
    version: str
    start: int
    end: int


class _TokenLogprob(msgspec.Struct, frozen=True):
    logprob: float


class _Logprobs(msgspec.Struct, frozen=True):
    content: list[_TokenLogprob]


class Sampled(msgspec.Struct, frozen=True):
    """One sample as the server returns it."""

    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str
    weight_versions: list[VersionSpan] | None = None


class _Generated(msgspec.Struct, frozen=True):
    choices: list[Sampled]


class _Model(msgspec.Struct, frozen=True):
    max_model_len: int


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


class _Cleared(msgspec.Struct, frozen=True):
    success: bool


class _WeightInfo(msgspec.Struct, frozen=True):
    weight_version: str


class ReadWeights(msgspec.Struct, frozen=True):
    """A server worker's report of the weights that it has read."""

    version: int
    checksum: str
    missing: str = ""
    """A layer of the server's model for which no weights were sent; if not empty, nothing was loaded."""


class _RpcResults(msgspec.Struct, frozen=True):
    results: list[ReadWeights]


@dataclass(frozen=True)
class Counters:
    """The server's counters since its start, and how full its cache is now."""

    num_tokens: int
    num_prefill_tokens: int
    num_cached_tokens: int
    """Prompt tokens found in its prefix cache."""
    num_steps: int
    num_preemptions: int
    cache_usage: float


class VllmClient:
    """Calls to the server at host:port; safe to use from many threads."""

    def __init__(self, address: str, *, token: str = "") -> None:
        self.address = address
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def generate(self, request_id: str, token_ids: list[int], sampling: dict[str, Any], salt: str) -> Sampled:
        """Sample one completion; has no timeout, because the server's process is watched elsewhere."""
        body = {"request_id": request_id, "token_ids": token_ids, "sampling_params": sampling, "cache_salt": salt}
        answer = self._call("POST", "/inference/v1/generate", body, timeout_seconds=None)
        return msgspec.json.decode(answer, type=_Generated).choices[0]

    def abort(self, request_ids: list[str]) -> None:
        """Abort requests; unknown and finished ones are ignored."""
        ids = [ID_PREFIX + request_id for request_id in request_ids]
        self._call("POST", "/inference/v1/abort_requests", {"request_ids": ids})

    def abort_all(self) -> None:
        self._call("POST", "/abort_requests", {})

    def pause(self, *, keeps_cache: bool) -> None:
        """Stop between two steps; requests stay, and those without a cache are recomputed after `resume`.

        Unless it is kept, running requests lose their cache, and the prefix cache is emptied. Sampled tokens stay.
        vLLM's documentation says that mode keep ignores clear_cache; its code does not.
        """
        clears = "false" if keeps_cache else "true"
        self._call("POST", f"/pause?mode=keep&clear_cache={clears}", timeout_seconds=LOAD_SECONDS)

    def resume(self) -> None:
        self._call("POST", "/resume")

    def clear_prefix_cache(self) -> None:
        """Empty the cache, after waiting for just-aborted requests that may still hold blocks."""
        deadline = time.monotonic() + CLEAR_SECONDS
        while not msgspec.json.decode(self._call("POST", "/reset_prefix_cache"), type=_Cleared).success:
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"the vLLM server at {self.address} did not clear its prefix cache within {CLEAR_SECONDS:.0f} "
                    "s; restart it, and let nothing else use it"
                )
            time.sleep(CLEAR_SECONDS / 100)

    def read_weights(self, **arguments: Any) -> list[ReadWeights]:
        """Make every worker of the server read the weights; see `plugin/freerun_vllm_plugin.py`."""
        body = {"method": "freerun_read_weights", "kwargs": arguments, "timeout": LOAD_SECONDS}
        answer = self._call("POST", "/collective_rpc", body, timeout_seconds=LOAD_SECONDS)
        return msgspec.json.decode(answer, type=_RpcResults).results

    def remove_rendezvous(self) -> None:
        self._call("POST", "/collective_rpc", {"method": "freerun_remove_rendezvous"})

    def set_version(self, version: str) -> None:
        """Set the label of tokens sampled from now on; call it only while the server is paused."""
        self._call("POST", "/update_weight_version", {"new_version": version})

    def version(self) -> str:
        return msgspec.json.decode(self._call("GET", "/weight_info"), type=_WeightInfo).weight_version

    def is_healthy(self) -> bool:
        """Whether it serves requests; False while it starts."""
        try:
            self._call("GET", "/health", timeout_seconds=5.0)
        except WorkerError:
            return False
        return True

    def max_sequence_tokens(self) -> int:
        """The longest sequence that the server accepts."""
        return msgspec.json.decode(self._call("GET", "/v1/models"), type=_Models).data[0].max_model_len

    def counters(self) -> Counters:
        metrics = self._call("GET", "/metrics").decode()
        cached = _metric(metrics, "prompt_tokens_cached_total")
        return Counters(
            num_tokens=int(_metric(metrics, "generation_tokens_total")),
            num_prefill_tokens=int(_metric(metrics, "prompt_tokens_total") - cached),
            num_cached_tokens=int(cached),
            num_steps=int(_metric(metrics, "iteration_tokens_total_count")),
            num_preemptions=int(_metric(metrics, "num_preemptions_total")),
            cache_usage=_metric(metrics, "kv_cache_usage_perc"),
        )

    def _call(
        self, method: str, path: str, body: object = None, *, timeout_seconds: float | None = CALL_SECONDS
    ) -> bytes:
        connection = http.client.HTTPConnection(self.address, timeout=timeout_seconds)
        try:
            content = None if body is None else msgspec.json.encode(body)
            connection.request(method, path, content, self._headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            raise WorkerError(
                f"the vLLM server at {self.address} did not answer {method} {path} ({what})"
            ) from None
        finally:
            connection.close()
        if response.status == http.HTTPStatus.OK:
            return answer
        reason = answer.decode(errors="replace")[:2000]
        complaint = f"the vLLM server at {self.address} answered {method} {path} with {response.status}: {reason}"
        raise RequestError(complaint) if response.status == http.HTTPStatus.BAD_REQUEST else WorkerError(complaint)


def _metric(metrics: str, name: str) -> float:
    """The sum of a metric over the server's engines; 0 if the metric is missing."""
    values = re.findall(rf"^vllm:{name}(?:\{{[^}}]*\}})? (\S+)$", metrics, re.MULTILINE)
    return sum(float(value) for value in values)
