"""The environment of docs/agents.md, written out as on the page, trains with the recipe of the page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documented_commands import ROOT, blocks

from freerun.data.tokenizer import Tokenizer
from freerun.events.reader import RunReader
from freerun.model.tiny import make_tiny

PAGE = ROOT / "docs" / "agents.md"
ALPHABET = "".join(map(chr, range(32, 127))).replace("$", "") + "\n"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}:{{ message.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
SHORT = ("--train.num_steps", "2", "--eval.num_prompts", "2", "--eval.num_samples", "1", "--page.port", "0")
MAX_LINES = 30


def write_as_a_new_user(directory: Path) -> None:
    """The recipe and the module in the user's directory, and a tiny model in the place of SmolLM2."""
    [recipe] = blocks(PAGE, "toml")
    [module] = [block for block in blocks(PAGE, "py") if block.startswith("# my_game.py\n")]
    assert len(module.splitlines()) < MAX_LINES
    (directory / "recipe.toml").write_text(recipe)
    (directory / "my_game.py").write_text(module)
    model = directory / re.findall(r'^path = "(.*)"', recipe, re.MULTILINE)[0]
    make_tiny(model, alphabet=ALPHABET, hidden_size=32, num_layers=2, num_kv_heads=2, intermediate_size=48)
    (model / "chat_template.jinja").write_text(CHAT_TEMPLATE)


@pytest.mark.slow
def test_the_environment_of_the_page_is_trained_as_it_is_written_there(tmp_path: Path) -> None:
    write_as_a_new_user(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "freerun.cli.main", "train", "recipe.toml", *SHORT],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tokenizer = Tokenizer.load(tmp_path / "models" / "smollm2")
    with RunReader(tmp_path / "runs" / "recipe") as reader:
        assert [step.version for step in reader.steps()] == [1, 2]
        trajectories = [t for version in (1, 2) for t in reader.trajectories(version)]
        assert [e.version for e in reader.evals()][-1] == 2
    assert len({(t.ordinal, t.sample) for t in trajectories}) == 2 * 4 * 8
    assert all(0 <= t.reward <= 1 for t in trajectories)
    # A random model writes no numbers, so most of its games have many turns.
    num_turns = [len({span.call for span in t.spans if span.version is not None}) for t in trajectories]
    assert max(num_turns) > 5
    assert all("u:a number, please" in tokenizer.decode(t.token_ids) for t in trajectories if t.reward == 0)
