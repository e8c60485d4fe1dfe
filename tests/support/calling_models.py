"""A tiny model that has learned from demonstrations to call a tool: a random one never writes a call."""

import json
import string
from pathlib import Path

from freerun.cli.main import main
from freerun.model.tiny import make_tiny

TEMPLATE = (
    "{# calls are written as [func_name1(parameter=value)] #}"
    "{% if tools %}{{ tools[0].function.description }}{% endif %}"
    "{% for message in messages %}{% if message.role == 'system' %}{{ message.content }}{% else %}"
    "{{ message.role[0] }}:{{ message.content }}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
"""Describes the first tool; a system message of a demonstration has the same words in the same place."""
SUMS = [(a, b) for a in range(6) for b in range(6)]
RECIPE = """
[run]
directory = "{directory}/runs"
name = "tiny"
seed = 3
[model]
path = "{model}"
[data]
task = "file"
path = "{directory}/sums.jsonl"
template = "{{question}}"
use_chat_template = true
max_prompt_tokens = 16
[rollout]
max_turns = 4
max_session_tokens = 120
[sampling]
group_size = 4
max_completion_tokens = 20
[engine]
num_slots = 16
cache_tokens = 2048
[objective]
advantage = "grpo"
[train]
num_steps = 12
prompts_per_step = 3
num_minibatches = 2
lr = 1e-4
[eval]
num_prompts = 2
num_samples = 2
every_steps = 6
[checkpoint]
every_steps = 4
"""


def make_calling_model(directory: Path) -> Path:
    """The model's directory: 3+4 makes it call add(a=3, b=4) and report the result, most of the time."""
    untrained, data = directory / "untrained", directory / "chats.jsonl"
    alphabet = (string.digits + string.ascii_letters + string.punctuation + " \n").replace(
        "$", ""
    )  # so <eos> ends a turn
    make_tiny(untrained, alphabet=alphabet, hidden_size=64, num_layers=2, intermediate_size=128, seed=5)
    (untrained / "chat_template.jinja").write_text(TEMPLATE)
    rows = [{"messages": _chat(a, b)} for a, b in SUMS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--model.path", str(untrained), "--run.directory", str(directory / "runs"), "--sft.lr", "3e-3"]
    options += ["--sft.num_steps", "180", "--sft.held_out_fraction", "0", "--train.num_threads", "1"]
    assert main(["sft", str(data), *options]) == 0
    return directory / "runs" / "chats" / "checkpoints" / "step-0" / "model"


def _chat(a: int, b: int) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": f"{a}+{b}"},
        {"role": "assistant", "content": f"[add(a={a},b={b})]"},
        {"role": "tool", "content": str(a + b)},
        {"role": "assistant", "content": str(a + b)},
    ]


def make_calling_run(directory: Path, model: Path) -> Path:
    """A recipe of sums for this model; returns its path."""
    rows = [{"question": f"{a}+{b}", "answer": str(a + b)} for a, b in SUMS]
    (directory / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = directory / "tiny.toml"
    path.write_text(RECIPE.format(directory=directory, model=model))
    return path
