"""The tokenizer agrees with `transformers`, which it replaces in the controller, and explains what is missing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from small_corpus import CHATML, CORPUS
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from freerun.data.tokenizer import Tokenizer
from freerun.errors import ModelError

TEXTS = [
    *CORPUS,
    "",
    " leading and trailing ",
    "tabs\tand\r\nnewlines\n\n\n",
    "unseen: ßøλ 你好 🧮",
    "<|im_start|>user\nspecial tokens in the text<|im_end|>",
]
EVERYTHING = """{{- bos_token }}
{%- set ns = namespace(count=0) %}
{% for message in messages %}
    {%- if message.role == 'system' %}
        {%- continue %}
    {%- endif %}
    {%- set ns.count = ns.count + 1 %}
    {% generation %}[{{ message.role | upper }}] {{ message | tojson }}{% endgeneration %}
{% endfor %}
{% if tools is none and documents is none and unk_token is not defined %}{{ ns.count }}{{ eos_token }}{% endif %}
{{ strftime_now('%Y') }}
{%- if add_generation_prompt %} go{% endif %}
"""
CONVERSATION = [
    {"role": "system", "content": "Be <brief> & clear."},
    {"role": "user", "content": "What is 7 * 8?"},
    {"role": "assistant", "content": "56"},
    {"role": "user", "content": 'Und "Käse"?'},
]


@pytest.fixture(scope="module")
def trained() -> tokenizers.Tokenizer:
    """A byte-level BPE, as SmolLM2, Llama 3 and Qwen use."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS * 10, trainer)
    return backend


def save(directory: Path, backend: tokenizers.Tokenizer, *, eos: object = 2, **settings: object) -> Path:
    directory.mkdir(exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        **settings,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": eos}))
    return directory


@pytest.fixture
def directory(tmp_path: Path, trained: tokenizers.Tokenizer) -> Path:
    return save(tmp_path / "model", trained)


def reference(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def assert_encodes_like_transformers(directory: Path) -> None:
    ours, theirs = Tokenizer.load(directory), reference(directory)
    for text in TEXTS:
        assert ours.encode(text).tolist() == theirs(text)["input_ids"], text


def test_encoding_equals_transformers(directory: Path) -> None:
    assert_encodes_like_transformers(directory)
    assert Tokenizer.load(directory).encode(CORPUS[0]).dtype == np.int32


def test_a_bos_token_is_added_where_tokenizer_json_asks_for_it(
    tmp_path: Path, trained: tokenizers.Tokenizer
) -> None:
    backend = tokenizers.Tokenizer.from_str(trained.to_str())
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    directory = save(tmp_path / "model", backend)
    assert_encodes_like_transformers(directory)
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.encode("7")[0] == 1
    assert tokenizer.encode("7", add_special_tokens=False).tolist() == tokenizer.encode("7")[1:].tolist()


@pytest.mark.parametrize("setting", ["add_bos_token", "add_eos_token"])
def test_tokenizer_json_decides_alone_about_bos_and_eos(
    tmp_path: Path, trained: tokenizers.Tokenizer, setting: str
) -> None:
    directory = save(tmp_path / "model", trained, **{setting: True})
    assert_encodes_like_transformers(directory)
    assert not {1, 2} & set(Tokenizer.load(directory).encode("7").tolist())


def test_truncation_and_padding_left_in_tokenizer_json_are_ignored(
    tmp_path: Path, trained: tokenizers.Tokenizer
) -> None:
    backend = tokenizers.Tokenizer.from_str(trained.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    tokenizer = Tokenizer.load(save(tmp_path / "model", backend))
    assert tokenizer.decode(tokenizer.encode(CORPUS[1])) == CORPUS[1]
    assert len(tokenizer.encode("7")) == 1


def test_decoding_restores_the_text_and_hides_only_the_end_token(directory: Path) -> None:
    tokenizer, theirs = Tokenizer.load(directory), reference(directory)
    for text in CORPUS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text == theirs.decode(ids)
        assert tokenizer.decode([*ids, 2]) == text
    assert tokenizer.decode([1, *tokenizer.encode("hi"), 0]) == "<|im_start|>hi<|endoftext|>"


def test_half_a_character_decodes_to_a_replacement_character(directory: Path) -> None:
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.decode(tokenizer.encode("ß")[:1]) == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("is_added", [False, True])
def test_an_end_token_that_is_an_ordinary_character_stays_in_the_text(tmp_path: Path, is_added: bool) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({c: i for i, c in enumerate("0123456789^,>=$")}))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    if is_added:
        backend.add_tokens([tokenizers.AddedToken("$", special=False)])
    tokenizer = Tokenizer.load(save(tmp_path / "model", backend, eos=14, bos_token="^", eos_token="$"))
    assert tokenizer.stop_token_ids == (14,)
    assert tokenizer.decode(tokenizer.encode("12,12=12$")) == "12,12=12$"
    assert tokenizer.vocab_size == 15
    with pytest.raises(ModelError, match=r"cannot encode 'What is 7\?' .*use a model whose tokenizer knows"):
        tokenizer.encode("What is 7?")


def test_vocabulary_counts_special_tokens(directory: Path) -> None:
    assert Tokenizer.load(directory).vocab_size == len(reference(directory))


def test_stop_tokens_are_gathered_from_all_files_that_name_one(directory: Path) -> None:
    (directory / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    assert Tokenizer.load(directory).stop_token_ids == (0, 2)
    (directory / "generation_config.json").unlink()
    (directory / "config.json").write_text('{"eos_token_id": 0}')
    assert Tokenizer.load(directory).stop_token_ids == (0, 2)  # 2 from eos_token of tokenizer_config.json
    (directory / "config.json").unlink()
    (directory / "tokenizer_config.json").unlink()
    assert Tokenizer.load(directory).stop_token_ids == ()


def test_an_end_token_the_tokenizer_does_not_have_is_refused(
    tmp_path: Path, trained: tokenizers.Tokenizer
) -> None:
    with pytest.raises(ModelError, match=r"config\.json: eos_token_id = 5000 is not a token"):
        Tokenizer.load(save(tmp_path / "model", trained, eos=5000))


@pytest.mark.parametrize("template", [CHATML, EVERYTHING], ids=["chatml", "everything"])
@pytest.mark.parametrize("place", ["file", "settings", "named"])
def test_rendering_a_chat_equals_transformers(
    tmp_path: Path, trained: tokenizers.Tokenizer, template: str, place: str
) -> None:
    if place == "file":
        directory = save(tmp_path / "model", trained)
        (directory / "chat_template.jinja").write_text(template)
    elif place == "settings":
        directory = save(tmp_path / "model", trained, chat_template=template)
    else:
        named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": template}]
        directory = save(tmp_path / "model", trained, chat_template=named)
    ours, theirs = Tokenizer.load(directory), reference(directory)
    text = ours.render_chat(CONVERSATION)
    assert text == theirs.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    ids = theirs.apply_chat_template(CONVERSATION, add_generation_prompt=True)["input_ids"]
    assert ours.encode(text, add_special_tokens=False).tolist() == ids
    assert "Käse" in text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", r"refuses messages of \(user\): roles must alternate"),
        ("{{ messages.append(1) }}", "refuses messages .* unsafe"),
        ("{{ ''.__class__.__mro__ }}", "refuses messages .* unsafe"),
        ("{% set ns = namespace() %}{% set ns.__html__ = 1 %}", "may not set"),
        ("{{ 1 + none }}", "refuses messages .* unsupported operand"),
    ],
)
def test_a_template_that_fails_or_misbehaves_is_an_error_of_the_model(
    directory: Path, template: str, message: str
) -> None:
    (directory / "chat_template.jinja").write_text(template)
    tokenizer = Tokenizer.load(directory)
    with pytest.raises(ModelError, match=message):
        tokenizer.render_chat([{"role": "user", "content": "hi"}])


def test_a_template_with_a_syntax_error_is_refused_when_it_is_used(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("line one\n{% for %}")
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.decode(tokenizer.encode("7")) == "7", "its advice, data.use_chat_template = false, must help"
    with pytest.raises(ModelError, match=r"chat_template\.jinja: .* error in line 2: .*use_chat_template = false"):
        tokenizer.render_chat([{"role": "user", "content": "hi"}])


def test_a_missing_chat_template_is_named_with_the_remedy(directory: Path) -> None:
    with pytest.raises(ModelError, match=r"no chat template .*set data\.use_chat_template = false"):
        Tokenizer.load(directory).render_chat([{"role": "user", "content": "hi"}])


def test_missing_and_damaged_files_are_named(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere/tokenizer\.json: no such file; .*save_pretrained"):
        Tokenizer.load(tmp_path / "nowhere")
    (directory / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json:1: not JSON"):
        Tokenizer.load(directory)
    (directory / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"config\.json: not a JSON object"):
        Tokenizer.load(directory)
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer.load(directory)


def test_the_controllers_side_of_data_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, freerun.data.source, freerun.data.tasks, freerun.rollout.single_turn; "
        "sys.exit(str({'torch', 'transformers'} & set(sys.modules) or '') or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
