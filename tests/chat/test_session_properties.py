"""Every sampled token is trained once, in the context it was sampled in, with the templates of real models.

Random policies talk to random clients (`fuzzed_sessions.py`); `session_properties.py` says what must be true.
"""

import asyncio
from random import Random

import pytest
from chat_models import KINDS, renderer_for
from chat_templates import template_texts
from fuzzed_sessions import APPENDS, Habits, play
from hypothesis import given, settings
from hypothesis import strategies as st
from session_properties import RecordingRenderer, check_sequences, check_texts

from freerun.chat.rendering import Renderer
from freerun.config.rollout import History

KEEP_HISTORY = [
    "hf_cohere", "hf_cohere2", "hf_gemma", "hf_gemma3", "hf_lfm2", "hf_lfm2_2_5", "hf_llama3", "hf_llama3_1",
    "hf_llama3_2", "hf_phi3", "hf_phi3_5", "hf_qwen2_5", "hf_qwen3", "hf_qwen3_instruct_2507", "smollm2",
    "vllm_template_chatml", "vllm_tool_chat_template_deepseekr1", "vllm_tool_chat_template_granite",
    "vllm_tool_chat_template_internlm2_tool", "vllm_tool_chat_template_llama3.1_json",
    "vllm_tool_chat_template_llama3.2_json", "vllm_tool_chat_template_llama3.2_pythonic",
    "vllm_tool_chat_template_llama4_pythonic", "vllm_tool_chat_template_phi4_mini",
    "vllm_tool_chat_template_qwen3coder", "vllm_tool_chat_template_toolace", "vllm_tool_chat_template_xlam_llama",
    "vllm_tool_chat_template_xlam_qwen",
]  # fmt: skip
"""Templates that print a turn later as they printed it at first. The others move or drop something: thinking, the
list of tools, a line break."""
NO_TAIL = [
    "vllm_tool_chat_template_apertus",
    "vllm_tool_chat_template_functiongemma",
    "vllm_tool_chat_template_gemma4",
    "vllm_tool_chat_template_glm4",
]
"""What these print behind a tool call cannot be told from what they print for it, in the policy's own format."""
HISTORIES: list[History] = ["template", "append"]


async def played_and_checked(renderer: Renderer, rng: Random, habits: Habits) -> int:
    """The number of sequences of one session."""
    await renderer.traits()
    recording = RecordingRenderer(renderer)
    played = await play(recording, rng, habits)
    num_sequences = check_sequences(played)
    await check_texts(played, recording)
    return num_sequences


@settings(max_examples=200)
@given(data=st.data(), rng=st.randoms(use_true_random=False), kind=st.sampled_from(sorted(KINDS)))
def test_any_session_is_exact(data: st.DataObject, rng: Random, kind: str) -> None:
    template = data.draw(st.sampled_from(sorted(template_texts())))
    history = data.draw(st.sampled_from(HISTORIES))
    habits = Habits(edits=rng.random() < 0.7, thinks=rng.random() < 0.5)
    asyncio.run(played_and_checked(renderer_for(template, kind, history), rng, habits))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_plain_sessions_are_exact_and_clients_that_append_get_one_sequence(kind: str) -> None:
    async def play_some() -> None:
        for seed in range(60):
            renderer = Renderer(renderer_for("smollm2", kind).tokenizer, use_chat_template=False)
            await played_and_checked(renderer, Random(seed), Habits())
            assert await played_and_checked(renderer, Random(seed), Habits(edits=False)) == 1

    asyncio.run(play_some())


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("template", KEEP_HISTORY)
def test_clients_that_append_get_one_sequence(template: str, kind: str) -> None:
    async def play_some() -> None:
        for seed in range(5):
            num_sequences = await played_and_checked(renderer_for(template, kind), Random(seed), APPENDS)
            assert num_sequences <= 1, "none if the template refuses the first messages"

    asyncio.run(play_some())


@pytest.mark.parametrize("template", sorted({*template_texts()} - {*NO_TAIL}))
def test_with_appended_history_any_template_gives_one_sequence(template: str) -> None:
    async def play_some() -> None:
        for seed in range(4):
            renderer = renderer_for(template, "byte_level", "append")
            habits = Habits(edits=False, strays=False)
            assert await played_and_checked(renderer, Random(seed), habits) <= 1

    asyncio.run(play_some())


@pytest.mark.bulk
@pytest.mark.parametrize("history", HISTORIES)
def test_ten_thousand_sessions_are_exact(history: History) -> None:
    """5,000 here, each history its own: 52 templates, 2 tokenizers."""

    async def play_all() -> int:
        num_sessions = 0
        for template in template_texts():
            for kind in KINDS:
                for seed in range(50):
                    rng = Random(f"{template} {kind} {seed}")
                    habits = Habits(edits=seed % 3 > 0, thinks=seed % 2 > 0)
                    await played_and_checked(renderer_for(template, kind, history), rng, habits)
                    num_sessions += 1
        return num_sessions

    assert asyncio.run(play_all()) >= 5000
