"""Interruptible continuous batching: requests in, completions out, new weights between two steps.

    step:     schedule ──► run (one forward pass, one version) ──► sample ──► postprocess
    prepare:  pack the large matrices of the next version; steps continue with the current one
    swap:     use them, mark the cache for recomputation, continue

Invariants: a forward pass uses one version, and each token is labelled with the version that computed its logits.
After a load the cache is recomputed under the new weights (`recompute`, AReaL) or kept (`keep`, PipelineRL).
Requests never return to the client. With `drain` no sequence is interrupted: a load waits until the running ones
have finished, and no new one starts until then. Parked caches (`parking.py`) survive a load only with `keep`.

Device and dtype are those of the model's parameters at construction; logits are sampled in float32.

Only `prepare` may run on another thread than the rest, and only once at a time. The engine knows nothing about
processes; `freerun.workers.rollout_worker` runs it in one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from freerun.config.engine import EngineConfig
from freerun.engine.cache import CachedAttention, KVCache
from freerun.engine.parking import ParkedCaches
from freerun.engine.prefill import PrefillChunk
from freerun.engine.sampler import sample, streams, uniforms
from freerun.engine.scheduler import PlannedStep, Scheduler, lent_prompts
from freerun.engine.sequence import Sequence, SequenceGroup
from freerun.errors import RequestError, WeightsError
from freerun.model.decoder import Decoder
from freerun.model.lora import trained_parameters
from freerun.model.packed import PackedWeight
from freerun.model.steady_rows import steady_rows
from freerun.types import Completion, EngineStats, Request


class TextDecoder(Protocol):
    """The part of a tokenizer that the engine needs: text, for stop strings and completions."""

    def decode(self, token_ids: np.ndarray) -> str: ...

    def decode_end(self, token_ids: list[int], *, first: int, num_characters: int) -> str:
        """The end of the text of `token_ids[first:]`: the last token's text and `num_characters` before it."""
        ...


Draw = Callable[[list[Sequence], Tensor, Tensor], tuple[list[int], list[float]]]
"""Takes sequences, logits and random numbers; returns the next token of each sequence, and its logprob."""


def draw_tokens(ready: list[Sequence], logits_RV: Tensor, uniforms_R: Tensor) -> tuple[list[int], list[float]]:
    """Draw with the sampling settings of each sequence's request."""
    return sample(logits_RV, [sequence.group.request.sampling for sequence in ready], uniforms_R)


@dataclass(frozen=True)
class NewWeights:
    """One version, ready to be used by the engine that prepared it."""

    version: int
    weights: Mapping[str, Tensor]
    packed: Mapping[str, PackedWeight]


class Engine:
    """Serves generation requests with one decoder; `step` and `swap` are called from one loop."""

    def __init__(
        self,
        model: Decoder,
        config: EngineConfig,
        *,
        text: TextDecoder,
        max_sequence_tokens: int,
        seed: int,
        draw: Draw = draw_tokens,
    ) -> None:
        self.model = model.requires_grad_(False)
        self.config = config
        self.version: int | None = None
        """None until `load` brings the first weights."""
        self._text = text
        self._seed = seed
        self._draw = draw
        self._slot_tokens = min(max_sequence_tokens, model.config.max_positions, config.cache_tokens)
        self._device, self._dtype = model.embedding.weight.device, model.embedding.weight.dtype
        self._cache = KVCache(
            model.config,
            num_slots=config.num_slots,
            slot_tokens=self._slot_tokens,
            device=self._device,
            dtype=self._dtype,
        )
        self._parked = ParkedCaches(self._cache, max_tokens=config.parked_tokens)
        self._scheduler = Scheduler(
            self._cache,
            self._parked,
            num_slots=config.num_slots,
            cache_tokens=config.cache_tokens,
            prefill_chunk_tokens=config.prefill_chunk_tokens,
        )
        self._spare_packed: dict[str, PackedWeight] = {}
        """Packed weights of the previous version: memory for the next one."""
        self._min_rows = 1
        """Minimal number of rows of every product; products with fewer rows are padded."""
        self._groups: dict[int, SequenceGroup] = {}
        self._num_sequences = 0
        counted = ("tokens", "prefill", "attended", "steps", "interrupts", "loads", "recomputed")
        self._counts = dict.fromkeys(counted, 0)
        self._busy_seconds = 0.0
        self._recompute_seconds = 0.0
        self._load_seconds = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self._groups)

    def submit(self, request: Request) -> None:
        """Queue a request; raises if it can never be served."""
        num_prompt = len(request.prompt_token_ids)
        if num_prompt == 0:
            raise RequestError(f"prompt {request.ordinal} has no tokens; an empty prompt cannot be continued")
        total = num_prompt + request.sampling.max_completion_tokens
        if total > self._slot_tokens:
            raise RequestError(
                f"prompt {request.ordinal} needs {num_prompt} + {request.sampling.max_completion_tokens} tokens, "
                f"the engine holds sequences of {self._slot_tokens}; shorten the prompt or "
                "sampling.max_completion_tokens, or raise engine.cache_tokens"
            )
        if request.request_id in self._groups:
            raise RequestError(f"request {request.request_id} is already running")
        random = streams(self._seed, request.ordinal, request.num_samples, first=request.sample, call=request.call)
        group = SequenceGroup(request, self._num_sequences, random)
        self._num_sequences += request.num_samples
        self._groups[request.request_id] = group
        self._scheduler.add(group)

    def abort(self, request_id: int) -> None:
        """Abort a request. An unknown one is ignored: it may just have finished."""
        group = self._groups.pop(request_id, None)
        if group is None:
            return
        for sequence in group.sequences:
            if sequence.finish_reason is None:
                self._scheduler.remove(sequence)
        if group.request.session is not None:
            self._parked.drop_request(group.request.session, request_id)

    def hold(self, request_id: int) -> None:
        """Sample no more tokens of this request before the next load; it keeps its slots and its cache."""
        if request_id in self._groups:
            self._scheduler.held.update(self._groups[request_id].sequences)

    def end_session(self, session: int) -> None:
        """Drop what the session has parked: it has no further turns."""
        self._parked.end_session(session)

    def drain(self) -> bool:
        """Start no sequence until the next load; returns whether all running ones have finished."""
        self._scheduler.is_draining = True
        return not self._scheduler.has_begun

    def load(self, version: int, weights: Mapping[str, Tensor]) -> int:
        """Generate with `weights` from the next step on; returns the number of interrupted sequences."""
        begin = time.perf_counter()
        prepared = self.prepare(version, weights)
        self._load_seconds += time.perf_counter() - begin
        return self.swap(prepared)

    def prepare(self, version: int, weights: Mapping[str, Tensor]) -> NewWeights:
        """On CPUs, pack the large matrices into memory that no step reads; may run on any thread, during steps."""
        parameters = trained_parameters(self.model)
        if parameters.keys() != weights.keys():
            difference = sorted(parameters.keys() ^ weights.keys())
            raise WeightsError(f'version {version} does not fit the model: "{difference[0]}" is on one side only')
        spare, self._spare_packed = self._spare_packed, {}
        return NewWeights(version, weights, self.model.pack(weights, spare))

    def swap(self, new: NewWeights) -> int:
        """Generate with the prepared weights from the next step on; returns the number of interrupted sequences.

        Tensors of the engine's device and dtype are used in place. Others are converted into its parameters.
        """
        begin = time.perf_counter()
        for name, parameter in trained_parameters(self.model).items():
            weight = new.weights[name]
            if weight.dtype == self._dtype and weight.device == self._device:
                parameter.data = weight
            else:
                parameter.copy_(weight)
        replaced = self.model.use_packed(new.packed)
        self._spare_packed = {name: packed for name, packed in replaced.items() if not packed.is_shared}
        if self.version is None and self.config.steady_rows:
            self._min_rows = steady_rows(self.model)
        self.version = new.version
        self._scheduler.is_draining = False
        self._scheduler.held.clear()
        self._counts["loads"] += 1
        num_interrupts = sum(sequence.num_sampled > 0 for sequence in self._scheduler.running)
        self._counts["interrupts"] += num_interrupts
        if self.config.kv_on_load != "keep":
            self._parked.clear()
        if self.config.kv_on_load == "recompute":
            self._counts["recomputed"] += self._scheduler.forget_cache()
        self._load_seconds += time.perf_counter() - begin
        return num_interrupts

    def add_load_seconds(self, seconds: float) -> None:
        """Add the time that decoding was paused before or after `swap` to copy a pinned version."""
        self._load_seconds += seconds

    def twin(self) -> Engine:
        """A second engine at this version, with its own empty cache and no requests.

        It reads this engine's weights; call `keep_weights` on it before they change.
        """
        twin = Engine(
            self.model, self.config, text=self._text, max_sequence_tokens=self._slot_tokens, seed=self._seed
        )
        twin.version, twin._min_rows = self.version, self._min_rows
        return twin

    def keep_weights(self) -> None:
        """Continue with a copy of the weights; those that are never trained stay shared."""
        self.model = self.model.frozen_copy(changing=trained_parameters(self.model).keys())

    @torch.inference_mode()
    def step(self) -> list[tuple[Request, tuple[Completion, ...]]]:
        """Run one forward pass; returns the requests it finished."""
        if self.version is None:
            raise WeightsError("the engine has no weights yet; call load before step")
        begin = time.perf_counter()
        version = self.version
        step = self._scheduler.schedule(version)
        recomputed_share = step.recomputed_share
        ready, hidden_RC = self._run(step, version)
        finished = self._sample(ready, hidden_RC, version) if ready else []
        self._counts["steps"] += 1
        seconds = time.perf_counter() - begin
        self._busy_seconds += seconds
        self._recompute_seconds += recomputed_share * seconds
        return finished

    def _run(self, step: PlannedStep, version: int) -> tuple[list[Sequence], Tensor]:
        """Compute the step's tokens; returns the fully cached sequences with their last hidden states."""
        ready, chunks = step.decodes, [chunk for _, chunk in step.prefills]
        self._counts["attended"] += sum(len(sequence.tokens) for sequence in ready)
        if step.prefills:
            ready, chunks = _with_last_tokens(step)
        token_ids = [sequence.tokens[-1] for sequence in ready]
        positions = [len(sequence.tokens) - 1 for sequence in ready]
        slots = [sequence.slot for sequence in ready]
        attention = CachedAttention(self._cache, slots, positions.copy(), lent_prompts(ready), chunks)
        for (sequence, _), chunk in zip(step.prefills, chunks, strict=True):
            token_ids += sequence.tokens[chunk.start : chunk.end]
            positions += range(chunk.start, chunk.end)
        num_computed = len(token_ids)
        if num_padding := max(0, self._min_rows - num_computed):
            token_ids += [0] * num_padding
            positions += [0] * num_padding
        hidden_TC = self.model(
            torch.tensor(token_ids, device=self._device), torch.tensor(positions, device=self._device), attention
        )
        for sequence in ready:
            sequence.num_computed = len(sequence.tokens)
        self._scheduler.finish_prefills(step.prefills, version)
        self._counts["prefill"] += num_computed - len(ready)
        return ready, hidden_TC[: len(ready)]

    def _logits(self, hidden_RC: Tensor) -> Tensor:
        num_rows = len(hidden_RC)
        if num_rows >= self._min_rows:
            return self.model.logits(hidden_RC)
        return self.model.logits(F.pad(hidden_RC, (0, 0, 0, self._min_rows - num_rows)))[:num_rows]

    def _sample(
        self, ready: list[Sequence], hidden_RC: Tensor, version: int
    ) -> list[tuple[Request, tuple[Completion, ...]]]:
        uniforms_R = uniforms(
            np.array([sequence.stream for sequence in ready]), [len(sequence.logprobs) for sequence in ready]
        )
        tokens, logprobs = self._draw(ready, self._logits(hidden_RC), uniforms_R)
        self._counts["tokens"] += len(tokens)
        self._scheduler.cache_tokens_used += len(tokens)
        finished = []
        for sequence, token, logprob in zip(ready, tokens, logprobs, strict=True):
            sequence.append(token, logprob, version)
            if self._finish(sequence) and sequence.group.is_finished:
                request = sequence.group.request
                finished.append((request, self._completions(self._groups.pop(request.request_id))))
        return finished

    def _finish(self, sequence: Sequence) -> bool:
        sampling = sequence.group.request.sampling
        if sequence.tokens[-1] in sampling.stop_token_ids or self._has_stop_string(sequence):
            sequence.finish_reason = "stop"
        elif len(sequence.logprobs) == sampling.max_completion_tokens:
            sequence.finish_reason = "length"
        else:
            return False
        self._scheduler.finish(sequence)
        return True

    def _has_stop_string(self, sequence: Sequence) -> bool:
        stops = sequence.group.request.sampling.stop_strings
        if not stops:
            return False
        end = self._text.decode_end(
            sequence.tokens,
            first=len(sequence.tokens) - sequence.num_sampled,
            num_characters=max(map(len, stops)),
        )
        # The bytes of an incomplete character decode to replacement characters: not text yet.
        end = end.rstrip("\N{REPLACEMENT CHARACTER}")
        return any(stop in end for stop in stops)

    def _completions(self, group: SequenceGroup) -> tuple[Completion, ...]:
        now = time.monotonic()
        return tuple(
            sequence.to_completion(self._text.decode(np.array(sequence.sampled_tokens, dtype=np.int32)), now=now)
            for sequence in group.sequences
        )

    def stats(self) -> EngineStats:
        return EngineStats(
            version=self.version,
            num_tokens=self._counts["tokens"],
            num_prefill_tokens=self._counts["prefill"],
            num_steps=self._counts["steps"],
            num_attended_tokens=self._counts["attended"],
            busy_seconds=self._busy_seconds,
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_slots=self.config.num_slots,
            cache_tokens_used=self._scheduler.cache_tokens_used,
            cache_tokens=self.config.cache_tokens,
            num_interrupts=self._counts["interrupts"],
            num_loads=self._counts["loads"],
            num_preemptions=self._scheduler.num_preemptions,
            load_seconds=self._load_seconds,
            num_recomputed_tokens=self._counts["recomputed"],
            num_adopted_tokens=self._parked.num_adopted_tokens,
            num_parked_tokens=self._parked.num_tokens,
            decode_seconds=self._busy_seconds - self._recompute_seconds,
            recompute_seconds=self._recompute_seconds,
        )


def _with_last_tokens(step: PlannedStep) -> tuple[list[Sequence], list[PrefillChunk]]:
    """The sequences that sample, by slot, and the chunks without their last tokens, which are decoded instead.

    This way the bits of a token's logits do not depend on whether its sequence computed or copied the prompt.
    """
    whole = [sequence for sequence, chunk in step.prefills if chunk.end == len(sequence.tokens)]
    ready = sorted((*step.decodes, *whole), key=lambda sequence: sequence.slot)
    chunks = [replace(chunk, end=min(chunk.end, len(sequence.tokens) - 1)) for sequence, chunk in step.prefills]
    return ready, chunks
