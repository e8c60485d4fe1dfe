"""Small random decoders and requests for tests of the engine, the trainer and the whole loop."""

import numpy as np
import torch
from torch import Tensor

from freerun.model.decoder import Decoder
from freerun.model.decoder_config import DecoderConfig
from freerun.types import Request, Sampling

TINY = DecoderConfig(
    vocab_size=29,
    hidden_size=24,
    intermediate_size=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=8,
    norm_eps=1e-6,
    rope_theta=10000.0,
    max_positions=512,
    has_qk_norm=True,
)
WIDE = DecoderConfig(
    vocab_size=640,
    hidden_size=512,
    intermediate_size=320,
    num_layers=1,
    num_heads=8,
    num_kv_heads=4,
    head_size=64,
    norm_eps=1e-6,
    rope_theta=10000.0,
    max_positions=128,
    has_qkv_bias=True,
)
"""Wide enough for its matrices to be packed."""


class Letters:
    """A text decoder for tests: token i is the i-th character from `a` on."""

    def decode(self, token_ids: np.ndarray | list[int]) -> str:
        return "".join(chr(ord("a") + int(token)) for token in token_ids)

    def decode_end(self, token_ids: list[int], *, first: int, num_characters: int) -> str:
        return self.decode(token_ids[first:])


def random_weights(seed: int, config: DecoderConfig = TINY) -> dict[str, Tensor]:
    """Weights that differ so much between seeds that their logprobs cannot be mistaken for each other."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in Decoder(config).named_parameters()}
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def random_model(seed: int, config: DecoderConfig = TINY) -> Decoder:
    model = Decoder(config)
    model.load_state_dict(random_weights(seed, config))
    return model


def make_request(
    request_id: int,
    *,
    prompt_length: int = 5,
    num_samples: int = 1,
    max_completion_tokens: int = 12,
    ordinal: int | None = None,
    vocab_size: int = TINY.vocab_size,
    **sampling: object,
) -> Request:
    prompt = np.random.default_rng(request_id).integers(0, vocab_size, prompt_length).astype(np.int32)
    return Request(
        request_id=request_id,
        ordinal=request_id if ordinal is None else ordinal,
        prompt_token_ids=prompt,
        num_samples=num_samples,
        sampling=Sampling(max_completion_tokens=max_completion_tokens, **sampling),  # type: ignore[arg-type]
    )
