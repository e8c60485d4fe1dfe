"""Texts in the middle of a conversation: encoded behind what is there, and read as a template would print them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpus import CORPUS
from tokenizer_kinds import END, KINDS, byte_level, load, sentencepiece
from tokenizers import AddedToken

from freerun.data.tokenizer import Tokenizer

TOKENIZERS = [
    Tokenizer(kind(), stop_token_ids=(END,), chat_template=None, origin="model")
    for kind in (byte_level, sentencepiece)
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    return load(tmp_path / "model", request.param())


@pytest.mark.parametrize("text", ["\n<|im_start|>user\nHi.", " is 7", "is 7"])
def test_behind_a_special_token_a_text_is_encoded_as_in_the_whole(tokenizer: Tokenizer, text: str) -> None:
    whole = tokenizer.encode("The difference<|im_end|>" + text, add_special_tokens=False).tolist()
    before = tokenizer.encode("The difference<|im_end|>", add_special_tokens=False).tolist()
    assert before + tokenizer.encode_after(text, before[-1]).tolist() == whole


@pytest.mark.parametrize("text", CORPUS)
def test_nothing_is_put_before_a_text_that_continues_another(tokenizer: Tokenizer, text: str) -> None:
    before = tokenizer.encode("The")
    ids = np.concatenate([before, tokenizer.encode_after(text, int(before[-1]))])
    assert tokenizer.decode(ids).endswith("The" + text)


def test_a_special_token_takes_white_space_behind_it_if_the_model_was_trained_so(tmp_path: Path) -> None:
    backend = byte_level()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, rstrip=True)])
    tokenizer = load(tmp_path / "model", backend)
    (end,) = tokenizer.encode("<|end|>", add_special_tokens=False)
    assert tokenizer.encode_after("\n7", int(end)).tolist() == tokenizer.encode("7").tolist()


@given(texts=st.lists(st.sampled_from([*CORPUS, "<|im_end|>", "<|im_", "end|>", "<|im_start|>"]), max_size=6))
def test_rendered_text_becomes_the_ids_that_it_was_rendered_from(texts: list[str]) -> None:
    for tokenizer in TOKENIZERS:
        ids = tokenizer.encode(tokenizer.joined(map(tokenizer.as_text, texts)), add_special_tokens=False)
        assert not np.isin(ids, [END]).any()
        rendered = tokenizer.rendered(np.append(ids, END))
        again = tokenizer.encode_after(rendered, END)
        assert again.tolist().count(END) == 1
        assert tokenizer.decode(again) == tokenizer.decode(ids)
        assert tokenizer.shown(rendered).endswith("".join(texts) + "<|im_end|>")


@pytest.mark.parametrize("text", CORPUS)
def test_the_bytes_of_tokens_together_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(tokenizer.bytes_of(i) for i in ids.tolist()).decode()
    assert joined.replace(" ", "") == tokenizer.decode(ids).replace(" ", "")
