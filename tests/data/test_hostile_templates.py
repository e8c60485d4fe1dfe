"""Chat templates and tokenizers from strangers: whatever they do ends soon, as one line that names the file."""

import json
import re
import sys
from pathlib import Path

import psutil
import pytest
import tokenizers
from code_tasks import data_directory
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from freerun.data import chat_template, template_process
from freerun.data.chat_template import ChatTemplate
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ModelError

MESSAGES = [{"role": "user", "content": "What is 7 * 8?"}]
NEVER_ENDING = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TOO_LARGE = {
    "a loop that prints": "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
    "a constant, while it compiles": "{{ 'x' * 10**10 }}",
    "indent": "{% set s = 'a\\n' * 10**6 %}{% for i in range(9999) %}{{ s | indent(10**6) }}{% endfor %}",
    "slice": "{% for x in messages | slice(10**12) %}{{ x }}{% endfor %}",
    "strftime": "{{ strftime_now('%c' * 10**7) }}",
    "format": "{{ '%1000000000d' % 1 }}",
    "join": "{{ ('x' * 10**6).join('y' * 10**6) }}",
}
FAILING = {
    "{{ 1 / 0 }}": "ZeroDivisionError: division by zero",
    "{{ range(10**9) | list }}": "OverflowError: Range too big",
    "{{ (10**5000) | string }}": "ValueError: Exceeds the limit",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "RecursionError",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}": "RecursionError",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}": "does not compile: RecursionError",
    "{% if 1 %}" * 200 + "{% endif %}" * 200: "does not compile: IndentationError",
    "{{ '\\ud800' }}": "UnicodeEncodeError",
    "{{ raise_exception('no\n\x1b[2J' * 10**5) }}": r"refuses messages of \(user\): no \[2Jno",
    "{{ {}['x'].y }}": "has no attribute 'x'",
    "{{ 'x' * 200000 }}": "prints 200,000 characters, and may print 100,",
}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, origin="model/chat_template.jinja", special_tokens={})


def error_of(source: str) -> str:
    with pytest.raises(ModelError) as caught:
        template(source).render(MESSAGES)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 500
    assert line.startswith("model/chat_template.jinja: the chat template ")
    assert line.endswith("; repair it or set data.use_chat_template = false")
    return line


@pytest.mark.slow
def test_a_template_that_never_ends_is_ended_and_not_asked_again() -> None:
    hostile = template(NEVER_ENDING)
    for _ in range(1000):
        with pytest.raises(ModelError, match="chat template needs more than 5 s of processor time; repair it"):
            hostile.render(MESSAGES)


@pytest.mark.parametrize("source", TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_a_template_that_needs_too_much_memory_is_refused(source: str) -> None:
    assert "needs more than 512 MiB of memory" in error_of(source)


@pytest.mark.parametrize("source", FAILING, ids=FAILING.values())
def test_whatever_a_template_raises_is_one_line(source: str) -> None:
    assert re.search(FAILING[source], error_of(source))


@pytest.mark.slow
def test_many_slow_renderings_use_up_the_budget_too() -> None:
    slow = template("{% for a in range(2000) %}{% for b in range(9999) %}{% endfor %}{% endfor %}")
    with pytest.raises(ModelError, match="processor time"):
        [slow.render(MESSAGES) for _ in range(1000)]


def test_a_long_conversation_may_make_a_long_text() -> None:
    content = "x" * 1_000_000
    echo = template("{% for m in messages %}{{ m.content * 2 }}{% endfor %}")
    assert echo.render([{"role": "user", "content": content}]) == content * 2


def test_messages_that_cannot_be_sent_are_an_error_of_one_line() -> None:
    with pytest.raises(ModelError, match="cannot be given these messages"):
        template("{{ messages[0].content }}").render([{"role": "user", "content": "\ud800"}])


def test_the_process_ends_with_the_template() -> None:
    rendered = template("{{ messages[0].content }}")
    assert rendered.render(MESSAGES) == "What is 7 * 8?"
    assert rendered._process is not None
    process = psutil.Process(rendered._process._process.pid)
    assert process.is_running()
    del rendered
    assert not process.is_running()


def test_a_process_without_work_ends_and_the_next_rendering_starts_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    soon = "import freerun.data.template_process as process; process.IDLE_SECONDS = 0.5; process.main()"
    command = [sys.executable, "-c", f"import sys; sys.path[:] = sys.argv[1:]; {soon}", *sys.path]
    monkeypatch.setattr(chat_template, "python_command", lambda module: command)
    rendered = template("{{ messages[0].content }}")
    for _ in range(2):
        assert rendered.render(MESSAGES) == "What is 7 * 8?"
        assert rendered._process is not None
        assert rendered._process._process.wait(60) == template_process.IDLE_STATUS


@pytest.mark.slow
def test_templates_in_use_print_what_transformers_prints(tmp_path: Path) -> None:
    from jinja2 import TemplateError
    from transformers import PreTrainedTokenizerFast

    data = data_directory()
    if data is None or not (data / "chat_templates").is_dir():
        pytest.skip("the chat templates are not at hand")
    reference = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>"
    )
    conversation = [*MESSAGES, {"role": "assistant", "content": "56"}, {"role": "user", "content": "Käse & <b>?"}]
    num_equal = 0
    for path in sorted((data / "chat_templates").iterdir()):
        source = path.read_text()
        ours = ChatTemplate(source, origin=path.name, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
        try:
            expected = reference.apply_chat_template(
                conversation, chat_template=source, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, TypeError):
            continue  # some want tools
        assert ours.render(conversation) == expected, path.name
        num_equal += 1
    assert num_equal > 45


def letters() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordLevel({c: i for i, c in enumerate("abcx")}, unk_token="x"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return backend


def save(directory: Path, backend: tokenizers.Tokenizer) -> Path:
    directory.mkdir(exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    return directory


GROWING = {
    "doubling": {"normalizer": normalizers.Sequence([normalizers.Replace("a", "aa")] * 40)},
    "anywhere": {"normalizer": normalizers.Replace(Regex(""), "x" * 1000)},
    "bytes of bytes": {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()] * 40)},
    "prefix": {"normalizer": normalizers.Prepend("a" * 1_000_000)},
    "copies": {"post_processor": processors.TemplateProcessing(single=" ".join(["$A"] * 900), special_tokens=[])},
    "decoding": {"decoder": decoders.Sequence([decoders.Replace("a", "aa")] * 40)},
}


@pytest.mark.parametrize("parts", GROWING.values(), ids=GROWING.keys())
def test_a_tokenizer_that_makes_texts_ever_longer_is_refused(tmp_path: Path, parts: dict[str, object]) -> None:
    backend = letters()
    for name, part in parts.items():
        setattr(backend, name, part)
    with pytest.raises(ModelError, match=r"tokenizer\.json: .* more than 200 times longer; repair its normalizer"):
        Tokenizer.load(save(tmp_path / "model", backend))


def test_a_regular_expression_that_backtracks_for_ever_is_an_error(tmp_path: Path) -> None:
    backend = letters()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer = Tokenizer.load(save(tmp_path / "model", backend))
    with pytest.raises(ModelError, match=r"the tokenizer cannot encode 'a+b'.*retry-limit"):
        tokenizer.encode("a" * 40 + "b")


def test_normalizers_in_use_are_not_refused(tmp_path: Path) -> None:
    backend = letters()
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Prepend("a"), normalizers.Replace(" ", "b"), normalizers.Lowercase()]
    )
    backend.decoder = decoders.Sequence([decoders.Replace("b", " "), decoders.ByteFallback(), decoders.Fuse()])
    assert Tokenizer.load(save(tmp_path / "model", backend)).encode("A C").tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json", "generation_config.json"])
def test_a_link_out_of_the_model_directory_is_not_followed(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root:$6$hash")
    directory = save(tmp_path / "model", letters())
    (directory / name).symlink_to(secret)
    with pytest.raises(
        ModelError, match=rf"{name}: a symbolic link to .*secret, outside the model directory"
    ) as caught:
        Tokenizer.load(directory)
    assert "hash" not in str(caught.value)


def test_links_of_the_hub_cache_and_within_the_directory_are_followed(tmp_path: Path) -> None:
    model = tmp_path / "models--someone--model"
    blobs, snapshot = model / "blobs", model / "snapshots" / "1234"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    save(blobs, letters()).joinpath("tokenizer.json").rename(blobs / "abcd")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/abcd")
    (snapshot / "template").write_text("hi")
    (snapshot / "chat_template.jinja").symlink_to("template")
    assert Tokenizer.load(snapshot).render_chat(MESSAGES) == "hi"


def test_an_error_quotes_only_the_beginning_of_a_text(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}))
    with pytest.raises(ModelError) as caught:
        Tokenizer.load(save(tmp_path / "model", backend)).encode("b" * 100_000)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", "[" * 100_000 + "]" * 100_000, "not JSON"),
        ("config.json", '{"a":' * 100_000 + "1" + "}" * 100_000, "not JSON"),
        ("config.json", '{"eos_token_id": 99999999999999999999}', "eos_token_id = 9999.* is not a token"),
        ("tokenizer.json", '{"a":' * 100_000 + "1" + "}" * 100_000, "not a tokenizer"),
        ("chat_template.jinja", "x" * (1 << 20) + "x", "a chat template of 1,048,577 characters"),
        ("chat_template.jinja", b"\xff\xfe", "not text in UTF-8"),
    ],
    ids=["deep list", "deep object", "huge id", "deep tokenizer", "huge template", "binary template"],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    directory = save(tmp_path / "model", letters())
    (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelError, match=rf"{name}: .*{message}") as caught:
        Tokenizer.load(directory)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("stored", [[1, "x"], [{"name": "default", "template": 1}], {"default": "x"}, 7, None])
def test_a_list_of_templates_without_a_usable_one_is_no_template(tmp_path: Path, stored: object) -> None:
    directory = save(tmp_path / "model", letters())
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": stored}))
    assert not Tokenizer.load(directory).has_chat_template
