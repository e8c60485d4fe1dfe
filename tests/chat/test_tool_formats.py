"""What the policy writes is hostile text: calls are read as they were meant, and the readers never raise."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from chat_templates import template_texts
from hypothesis import given
from hypothesis import strategies as st
from written_tool_calls import Calls, hermes, llama_json, pythonic, tool_for, xml

from freerun.chat.messages import Tool
from freerun.chat.tool_formats import HERMES, JSON, PYTHONIC, XML, ToolFormat, format_for, read

FORMATS: list[tuple[ToolFormat, Callable[[Calls], str]]] = [
    (HERMES, hermes),
    (JSON, llama_json),
    (PYTHONIC, pythonic),
    (XML, xml),
]
ADD = Tool(name="add", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
names = st.from_regex(r"\A[a-z][a-z_0-9]{0,11}\Z").filter(lambda name: name.isidentifier())
scalars = (
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(st.tuples(names, st.dictionaries(names, values, max_size=3)), min_size=1, max_size=3)


def arguments_of(text: str, form: ToolFormat, *tools: Tool) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in read(text, form, tools or (ADD,)).calls]


@pytest.mark.parametrize(("form", "write"), FORMATS, ids=lambda value: getattr(value, "name", ""))
@given(written=calls)
def test_calls_are_read_as_they_were_written(
    form: ToolFormat, write: Callable[[Calls], str], written: list[tuple[str, dict[str, Any]]]
) -> None:
    if form is PYTHONIC:
        written = [(f"f_{name}", {f"p_{key}": value for key, value in items.items()}) for name, items in written]
    if form is XML:
        # Bare text cannot hold its own end tag, and a call without a schema is all text.
        written = [(f"{name}{n}", items) for n, (name, items) in enumerate(written)]
    tools = [tool_for(name, items) for name, items in written]
    assert arguments_of(write(written), form, *tools) == [(name, items) for name, items in written]


@given(text=st.text())
def test_any_text_is_read_without_an_exception(text: str) -> None:
    for form, _ in FORMATS:
        reading = read(text, form, (ADD,))
        assert reading.calls == () or len(reading.content) < len(text)


@pytest.mark.bulk
def test_a_hundred_thousand_mutated_calls_raise_nothing() -> None:
    rng = random.Random(15)
    seeds = [write([("add", {"a": 1, "b": [True, None, {"c": "é\\n"}]}), ("look", {})]) for _, write in FORMATS]
    seeds += ["<think>\nhm\n</think>\n" + seed for seed in seeds]
    pieces = [
        *'{}[]()<>"=:,;\\',
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "</think>",
        "\ud83d",
        "9" * 5000,
        "\0",
    ]
    for _ in range(100_000):
        text = rng.choice(seeds)
        for _ in range(rng.randint(1, 6)):
            start = rng.randrange(len(text) + 1)
            text = text[:start] + rng.choice(pieces) * rng.choice([0, 1, 1, 2]) + text[start + rng.randint(0, 9) :]
        for form, _ in FORMATS:
            for call in read(text, form, (ADD,)).calls:
                json.loads(call.arguments)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '<tool_call>{"name": "add", "arguments": ' + '{"a": ' * 5000 + "1" + "}" * 5001 + "</tool_call>",
        "[add(a=" + "-" * 90_000 + "1)]",
        "[add(a=" + "(" * 90_000 + ")]",
        "[add(a=" + "9" * 6000 + ")]",
        "[add(a=1e999)]",
        "[add(a={1, 2})]",
        "[add(a=b'x')]",
        "[add(a=1+2j)]",
        "[add(*x)]",
        "[add(**x)]",
        "[add(1)]",
        "[print()()]",
        "[add(a=open('/etc/passwd'))]",
        "[add(a=1), 7]",
        "[]",
        "[add(a='\\ud800')]",
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": 1e999}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "a"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": 1}} and more',
        '{"name": "add", "parameters": {"a": 1}} is what I would call',
        "<tool_call><function=add><parameter=a>1</function></tool_call>",
        "<tool_call><function=add>1</function></tool_call>",
    ],
)
def test_a_malformed_call_stays_in_the_content(text: str) -> None:
    for form, _ in FORMATS:
        reading = read(text, form, (ADD,))
        assert (reading.content, reading.calls) == (text, ())


def test_arguments_are_the_text_that_the_policy_wrote() -> None:
    text = '<tool_call>{"arguments" : {"a":2,  "b": "</tool_call>"}, "name": "add"}</tool_call>'
    (call,) = read(text, HERMES, (ADD,)).calls
    assert call.arguments == '{"a":2,  "b": "</tool_call>"}'


def test_words_around_calls_are_content() -> None:
    text = f"Let me add.\n{hermes([('add', {'a': 1})])}\n<tool_call>oops</tool_call>"
    reading = read(text, HERMES, (ADD,))
    assert reading.content == "Let me add.\n\n<tool_call>oops</tool_call>"
    assert [call.name for call in reading.calls] == ["add"]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ('<|python_tag|>{"name": "add", "parameters": {"a": 1}}', JSON),
        ('{"name": "add", "parameters": {"a": 1}}\n', JSON),
        ('[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]', JSON),
        ('[{"name": "add", "arguments": {"a": 1}}]', JSON),
        ("<|python_start|>[add(a=1)]<|python_end|>", PYTHONIC),
        ("<|tool_call_start|>[add(a=1)]<|tool_call_end|>", PYTHONIC),
        ("[add(a=1)]", PYTHONIC),
        ("<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>", XML),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}', HERMES),
    ],
)
def test_variants_of_a_format_are_understood(text: str, form: ToolFormat) -> None:
    assert arguments_of(text, form) == [("add", {"a": 1})]


def test_constants_of_python_and_json_are_understood() -> None:
    text = "[files.read(a=true, b=None, c=[False, null], d={'e': (1, -2.5)})]"
    assert arguments_of(text, PYTHONIC) == [
        ("files.read", {"a": True, "b": None, "c": [False, None], "d": {"e": [1, -2.5]}})
    ]


def test_without_tools_there_are_no_calls() -> None:
    text = hermes([("add", {"a": 1})])
    assert read(text, HERMES, ()).content == text


@pytest.mark.parametrize(
    ("text", "is_thinking", "thinking", "content"),
    [
        ("<think>\nTwo.\n</think>\n\nFour.", False, "Two.", "Four."),
        ("Two.\n</think>\n\nFour.", True, "Two.", "Four."),
        ("Two.\n</think>\n\nFour.", False, "", "Two.\n</think>\n\nFour."),
        ("<think>\nTwo and", False, "Two and", ""),
        ("Two and", True, "Two and", ""),
        ("Four. <think>", False, "", "Four. <think>"),
    ],
)
def test_thinking_is_split_off(text: str, is_thinking: bool, thinking: str, content: str) -> None:
    reading = read(text, HERMES, (ADD,), is_thinking=is_thinking)
    assert (reading.thinking, reading.content) == (thinking, content)


@pytest.mark.parametrize("form", [form for form, _ in FORMATS], ids=lambda form: form.name)
def test_the_opening_of_a_call_continues_to_a_call(form: ToolFormat) -> None:
    rest = {"hermes": ' {"a": 1}}\n</tool_call>', "json": ' {"a": 1}}', "pythonic": "a=1)]"}
    xml_rest = "<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    assert arguments_of(form.opening("add") + rest.get(form.name, xml_rest), form) == [("add", {"a": 1})]
    whole = form.opening("add") + rest.get(form.name, xml_rest)
    assert whole.startswith(form.opening("")), "the opening of any call is one of a certain call"


EXPECTED = {
    "hermes": ["hf_qwen2_5", "hf_qwen3", "hf_qwen3_instruct_2507", "vllm_tool_chat_template_hermes", "smollm2"],
    "json": [
        "hf_llama3_1",
        "vllm_tool_chat_template_llama3.1_json",
        "vllm_tool_chat_template_llama4_json",
        "vllm_tool_chat_template_xlam_qwen",
        "vllm_tool_chat_template_mistral",
    ],
    "pythonic": [
        "vllm_tool_chat_template_llama3.2_pythonic",
        "vllm_tool_chat_template_llama4_pythonic",
        "vllm_tool_chat_template_toolace",
        "hf_lfm2_2_5",
    ],
    "xml": ["vllm_tool_chat_template_qwen3coder", "hf_nemotron_3_nano", "hf_qwen3_5_think"],
}


@pytest.mark.parametrize(("form", "template"), [(form, name) for form in EXPECTED for name in EXPECTED[form]])
def test_the_format_is_the_templates(form: str, template: str, templates: dict[str, str]) -> None:
    assert format_for(templates[template]).name == form


@pytest.fixture(scope="module")
def templates() -> dict[str, str]:
    return template_texts()
