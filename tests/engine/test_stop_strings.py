"""A completion ends with the first token that completes a stop string in its decoded text, with any tokenizer."""

from collections.abc import Callable

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import random_model
from tokenizer_kinds import KINDS, byte_level, load, sentencepiece
from tokenizers import decoders, models

from freerun.config.engine import EngineConfig
from freerun.data.tokenizer import Tokenizer
from freerun.engine.engine import Engine
from freerun.engine.sampler import streams
from freerun.engine.sequence import SequenceGroup
from freerun.types import Request, Sampling

PROMPT = 7
"""A token that is not sampled: its text is no part of the completion."""
HALF = "\N{REPLACEMENT CHARACTER}"
STOPS = ["\n", "\n\n", " ", "é", "終", "🙂", "終わり", "a", "e f", "<|im_start|>", "\n\nQuestion:", ".🙂\n"]


def word_pieces() -> tokenizers.Tokenizer:
    pieces = ["[UNK]", *NAMES_OF_WORD_PIECES]
    backend = tokenizers.Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


NAMES_OF_WORD_PIECES = ["a", "##a", "be", "##be", "e", "##f", "f", ".", "?", "n", "'", "t", "do"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    return {
        kind.__name__: load(tmp_path_factory.mktemp(kind.__name__) / "model", kind())
        for kind in (*KINDS, word_pieces)
    }


@pytest.fixture(scope="module")
def engines(loaded: dict[str, Tokenizer]) -> dict[str, Engine]:
    return {
        name: Engine(random_model(0), EngineConfig(), text=tokenizer, max_sequence_tokens=100, seed=7)
        for name, tokenizer in loaded.items()
    }


def tokens_until_stop(engine: Engine, ids: list[int], *stops: str) -> int | None:
    """How many tokens the engine samples if the model wants to say `ids`."""
    sampling = Sampling(max_completion_tokens=1000, stop_strings=stops)
    prompt = np.array([PROMPT] * 3, dtype=np.int32)
    request = Request(request_id=1, ordinal=1, prompt_token_ids=prompt, num_samples=1, sampling=sampling)
    sequence = SequenceGroup(request, 0, streams(0, 1, 1)).sequences[0]
    for number, token in enumerate(ids, start=1):
        sequence.append(token, 0.0, 0)
        if engine._has_stop_string(sequence):
            return number
    return None


def by_decoding_all(tokenizer: Tokenizer, ids: list[int], *stops: str) -> int | None:
    for number in range(1, len(ids) + 1):
        if any(stop in tokenizer.decode(ids[:number]) for stop in stops):
            return number
    return None


def is_text(stop: str) -> bool:
    """A stop string with a replacement character may be found late: the bytes could have become a character."""
    return HALF not in stop


def byte_tokens(tokenizer: Tokenizer, data: bytes) -> list[int]:
    vocabulary = tokenizer._backend.get_vocab()
    return [vocabulary[f"<0x{byte:02X}>"] for byte in data]


@pytest.mark.parametrize("kind", [*(kind.__name__ for kind in KINDS), "word_pieces"])
@given(data=st.data())
def test_the_first_token_that_completes_a_stop_string_ends_the_completion(
    loaded: dict[str, Tokenizer], engines: dict[str, Engine], kind: str, data: st.DataObject
) -> None:
    tokenizer = loaded[kind]
    texts = st.text(alphabet="ae f.\n終わりé🙂x", max_size=12).map(
        lambda text: tokenizer.encode(text, add_special_tokens=False).tolist()
    )
    if kind == sentencepiece.__name__:  # what its vocabulary has a token for may be spelled in bytes as well
        texts |= st.text(alphabet="é終🙂\nx ", max_size=6).map(lambda text: byte_tokens(tokenizer, text.encode()))
    any_tokens = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=8)
    ids = [token for part in data.draw(st.lists(texts | any_tokens, max_size=5)) for token in part]
    own = tokenizer.decode(ids)
    parts = st.integers(0, max(0, len(own) - 1)).map(lambda at: own[at : at + 3].strip(HALF) or "\n")
    stops = data.draw(st.lists(st.sampled_from(STOPS) | parts.filter(is_text), min_size=1, max_size=3))
    assert tokens_until_stop(engines[kind], ids, *stops) == by_decoding_all(tokenizer, ids, *stops)


def test_a_newline_after_a_character_of_bytes_is_found_at_once(
    loaded: dict[str, Tokenizer], engines: dict[str, Engine]
) -> None:
    tokenizer = loaded[sentencepiece.__name__]
    ids = byte_tokens(tokenizer, "終わ\n".encode())
    assert tokenizer.decode(ids) == "終わ\n"
    assert tokens_until_stop(engines[sentencepiece.__name__], [*ids, *ids], "\n") == 7


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_a_stop_string_of_many_bytes_is_found_with_its_last_byte(
    loaded: dict[str, Tokenizer], engines: dict[str, Engine], kind: Callable[..., object]
) -> None:
    name = kind.__name__
    stop = "終わりました"
    ids = loaded[name].encode("so: " + stop, add_special_tokens=False).tolist()
    assert len(ids) > 2 * len(stop)
    assert tokens_until_stop(engines[name], [*ids, 5, 6], stop) == len(ids)


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_half_a_character_is_no_text_yet(
    loaded: dict[str, Tokenizer], engines: dict[str, Engine], kind: Callable[..., object]
) -> None:
    name = kind.__name__
    tokenizer = loaded[name]
    ids = byte_tokens(tokenizer, "🙂".encode()) if kind is sentencepiece else tokenizer.encode("🧮").tolist()
    assert HALF in tokenizer.decode(ids[:2])
    assert tokens_until_stop(engines[name], ids, HALF) is None


def test_the_end_of_a_text_is_decoded_without_all_of_it(
    loaded: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = loaded[byte_level.__name__]
    ids = tokenizer.encode("The larger number is replaced by the difference. " * 50).tolist()
    longest = 0
    decode = tokenizer.decode

    def counting(part: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(part))
        return decode(part)

    monkeypatch.setattr(tokenizer, "decode", counting)
    for number in range(1, len(ids)):
        end = tokenizer.decode_end(ids[:number], first=0, num_characters=2)
        assert decode(ids[:number]).endswith(end)
    assert longest < 20
