"""The prompt of a later turn against an oracle: what the package `renderers` makes of the same turn.

    ChatSession: ids of the first turn ─► ids of the second        == bridge_to_next_turn of renderers

It has code by hand for each family of models, freerun has the chat template alone. It runs in `.venv-renderers`.
For GLM-4.5 and DeepSeek V3 it renders these conversations anew, so there is nothing to compare.
"""

import asyncio
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from chat_models import TemplateHere, special_names
from chat_templates import template_texts
from scripted_policy import ScriptedPolicy
from tokenizer_kinds import byte_level
from written_tool_calls import hermes, llama_json, tool_for, xml

from freerun.chat.messages import ChatCall, Message, Tool
from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, SessionLimits
from freerun.data.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-renderers" / "bin" / "python"
PROGRAM = Path(__file__).parent / "programs" / "bridge_turns.py"
NUM_CONVERSATIONS = 250
LIMITS = SessionLimits(max_turns=8, max_session_tokens=4000, max_completion_tokens=500)
FAMILIES = {
    "qwen3": ("hf_qwen3", "<|im_end|>"),
    "llama-3": ("hf_llama3_1", "<|eot_id|>"),
    "qwen3.5": ("hf_qwen3_5_think", "<|im_end|>"),
    "nemotron-3": ("hf_nemotron_3_nano", "<|im_end|>"),
}
"""The template and the end token of each family of renderers."""
WRITTEN = {"qwen3": hermes, "llama-3": llama_json, "qwen3.5": xml, "nemotron-3": xml}
"""How each family writes calls."""
THINKING = ("qwen3.5", "nemotron-3")
"""Their prompts end with the beginning of thoughts."""
SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|python_tag|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>",
    "<|assistant|>", "<|observation|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
ADDED = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>",
    "</arg_key>", "<arg_value>", "</arg_value>",
)  # fmt: skip
"""In the vocabularies of these models, as plain text."""
WORDS = [
    "one",
    "two",
    "three,",
    "4",
    "five.",
    "six?",
    "seven!",
    "8-9",
    "ten;",
    "a(b)",
    "{c}",
    "[d]",
    "'e'",
    '"f"',
    "é",
    "漢字",
]


def tokenizer_of(template: str, end: str) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(byte_level().to_str())
    backend.add_special_tokens(list(SPECIAL))
    backend.add_tokens([tokenizers.AddedToken(text, special=False, normalized=False) for text in ADDED])
    source, end_id = template_texts()[template], backend.token_to_id(end)
    assert end_id is not None
    return Tokenizer(
        backend,
        stop_token_ids=(end_id,),
        chat_template=TemplateHere(source, special_names(template)),
        origin=template,
    )


def some_text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))


async def converse(renderer: Renderer, rng: random.Random, *, thinks: bool) -> dict[str, Any]:
    """Two turns of a random conversation; what an oracle is asked, and what the engine was given."""
    before = [Message(role="user", content=some_text(rng))]
    if rng.random() < 0.5:
        before.insert(0, Message(role="system", content=some_text(rng)))
    policy = ScriptedPolicy(
        renderer.tokenizer,
        [f"{some_text(rng)}\n</think>\n\n{some_text(rng)}" if thinks else some_text(rng), "no more"],
    )
    session = ChatSession(renderer, policy, LIMITS)
    [reply] = await session.reply(ChatCall(messages=tuple(before)))
    asked = Message(role="user", content=some_text(rng))
    await session.reply(ChatCall(messages=(*before, reply.message, asked)))
    return {
        "prompt": policy.requests[0].token_ids.tolist(),
        "completion": policy.completions[0].token_ids.tolist(),
        "messages": [{"role": "user", "content": asked.content}],
        "tools": None,
        "expected": policy.requests[1].token_ids.tolist(),
    }


async def use_tools(renderer: Renderer, rng: random.Random, *, family: str) -> list[dict[str, Any]]:
    """A call, its result, the answer, and what the user says then: what is asked at both boundaries."""
    tools, write = (tool_for("look", {"where": "up"}), tool_for("wait", {"why": "so"})), WRITTEN[family]
    num_calls = 1 if family == "llama-3" else rng.randint(1, 2)
    calls = [
        rng.choice((("look", {"where": some_text(rng)}), ("wait", {"why": some_text(rng)})))
        for _ in range(num_calls)
    ]
    thoughts = f"{some_text(rng)}\n</think>\n\n" if family in THINKING else ""
    policy = ScriptedPolicy(renderer.tokenizer, [thoughts + write(calls), thoughts + some_text(rng), "no more"])
    session = ChatSession(renderer, policy, LIMITS)
    messages = [Message(role="user", content=some_text(rng))]
    said: list[list[Message]] = []
    for turn in range(3):
        [reply] = await session.reply(ChatCall(messages=tuple(messages), tools=tools))
        assert len(reply.message.tool_calls) == (num_calls if turn == 0 else 0)
        said.append(
            [
                Message(role="tool", content=some_text(rng), tool_call_id=call.id, name=call.name)
                for call in reply.message.tool_calls
            ]
            or [Message(role="user", content=some_text(rng))]
        )
        messages += [reply.message, *said[-1]]
    return [
        {
            "prompt": policy.requests[turn].token_ids.tolist(),
            "completion": policy.completions[turn].token_ids.tolist(),
            "messages": [_as_openai(message) for message in said[turn]],
            "tools": [_spec(tool) for tool in tools],
            "expected": policy.requests[turn + 1].token_ids.tolist(),
        }
        for turn in range(2)
    ]


def _as_openai(message: Message) -> dict[str, str]:
    fields = {"role": message.role, "content": message.content}
    return fields | (
        {"tool_call_id": message.tool_call_id, "name": message.name} if message.role == "tool" else {}
    )


def _spec(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def assert_equal_to_renderers(family: str, tokenizer: Tokenizer, cases: list[dict[str, Any]]) -> None:
    assert PYTHON.exists(), "no .venv-renderers; run make test-clients"
    asked = {"family": family, "tokenizer": tokenizer._backend.to_str(), "cases": cases}
    done = subprocess.run([PYTHON, PROGRAM], input=json.dumps(asked), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    bridged = json.loads(done.stdout)
    assert None not in bridged
    wrong = [(case["expected"], ids) for case, ids in zip(cases, bridged, strict=True) if case["expected"] != ids]
    assert not wrong, [tokenizer.decode(ids) for ids in wrong[0]]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_prompt_of_random_conversations_is_what_renderers_makes_of_it(family: str) -> None:
    tokenizer = tokenizer_of(*FAMILIES[family])
    renderer = Renderer(tokenizer, history="append", use_chat_template=True)

    async def talk() -> list[dict[str, Any]]:
        rng = random.Random(0)
        return [await converse(renderer, rng, thinks=family in THINKING) for _ in range(NUM_CONVERSATIONS)]

    assert_equal_to_renderers(family, tokenizer, asyncio.run(talk()))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_prompts_after_results_of_tools_are_what_renderers_makes_of_them(family: str) -> None:
    tokenizer = tokenizer_of(*FAMILIES[family])
    renderer = Renderer(tokenizer, history="append", use_chat_template=True)

    async def talk() -> list[dict[str, Any]]:
        rng = random.Random(1)
        played = [await use_tools(renderer, rng, family=family) for _ in range(NUM_CONVERSATIONS)]
        return [case for cases in played for case in cases]

    assert_equal_to_renderers(family, tokenizer, asyncio.run(talk()))
