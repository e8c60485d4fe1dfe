"""`freerun.Engine`: the engine of a rollout worker in the calling process; texts in, completions out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from freerun.api.arguments import require_texts, require_type, setting
from freerun.config.engine import EngineConfig
from freerun.config.recipe import SamplingConfig
from freerun.config.section import field_types
from freerun.config.values import Count, GroupCount, Seed
from freerun.data.tokenizer import Tokenizer
from freerun.engine.engine import Engine
from freerun.errors import ConfigError
from freerun.model.adapter_directory import check_directory
from freerun.model.checkpoint import load_model
from freerun.model.device import resolve_device, resolve_dtype
from freerun.model.hub import local_directory
from freerun.types import Completion, Request, Sampling


class TextEngine:
    """Generates with one model; not thread-safe."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._numbers = itertools.count()

    @classmethod
    def load(
        cls,
        model_directory: str | Path,
        *,
        config: EngineConfig | None = None,
        max_sequence_tokens: int = 1024,
        seed: int = 0,
    ) -> TextEngine:
        """Load a Hugging Face directory; a prompt and its completion have at most `max_sequence_tokens`.

        The same seed and the same calls give the same samples.
        """
        require_type("model_directory", model_directory, (str, Path), "the path of a model directory")
        require_type("config", config, (EngineConfig, type(None)), "an EngineConfig")
        max_sequence_tokens = setting("max_sequence_tokens", max_sequence_tokens, Count)
        config, seed = config or EngineConfig(), setting("seed", seed, Seed)
        directory = Path(local_directory(str(model_directory)))
        check_directory(directory)
        tokenizer = Tokenizer.load(directory)
        device = resolve_device("engine.device", config.device, index=0)
        model = load_model(directory).to(device, resolve_dtype(config.dtype))
        engine = Engine(model, config, text=tokenizer, max_sequence_tokens=max_sequence_tokens, seed=seed)
        engine.load(0, {name: parameter.data for name, parameter in model.named_parameters()})
        return cls(engine, tokenizer)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        num_samples: int = 1,
        max_completion_tokens: int = 256,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
    ) -> list[list[Completion]]:
        """The completions of each prompt, with `text`, `token_ids` and `logprobs`; temperature 0 is greedy.

        Prompts are plain text; no chat template is applied.
        """
        require_texts("prompts", prompts)
        require_texts("stop", stop)
        if not all(stop):
            raise ConfigError("stop holds an empty text, which would end every completion")
        types = field_types(SamplingConfig)
        sampling = Sampling(
            max_completion_tokens=setting("max_completion_tokens", max_completion_tokens, Count),
            temperature=setting("temperature", temperature, types["temperature"]) if temperature else 0.0,
            top_k=setting("top_k", top_k, types["top_k"]),
            top_p=setting("top_p", top_p, types["top_p"]),
            stop_strings=tuple(stop),
            stop_token_ids=self._tokenizer.stop_token_ids,
        )
        num_samples = setting("num_samples", num_samples, GroupCount)
        requests = [self._request(prompt, num_samples, sampling) for prompt in prompts]
        try:
            for request in requests:
                self._engine.submit(request)
            finished: dict[int, tuple[Completion, ...]] = {}
            while self._engine.has_work:
                finished |= {request.request_id: completions for request, completions in self._engine.step()}
        except BaseException:
            for request in requests:
                self._engine.abort(request.request_id)
            raise
        return [list(finished[request.request_id]) for request in requests]

    def _request(self, prompt: str, num_samples: int, sampling: Sampling) -> Request:
        number = next(self._numbers)
        return Request(
            request_id=number,
            ordinal=number,
            prompt_token_ids=self._tokenizer.encode(prompt),
            num_samples=num_samples,
            sampling=sampling,
        )
