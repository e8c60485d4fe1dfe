"""What the commands of a page presume, and what is exchanged in them; for `test_documented_commands.py`.

A command runs as it is written, in a directory with a tiny model where the page has a real one. What differs is in
the tables here, and nowhere else.
"""

import fnmatch
import json
import re
import shlex
import string
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from documented_commands import PAGES, ROOT, Command, blocks, commands_of

from freerun.model.tiny import make_tiny

EXECUTED = (
    "README.md", "docs/agents.md", "docs/devices.md", "docs/evaluation.md", "docs/first-run.md", "docs/gateway.md",
    "docs/library.md", "docs/lora.md", "docs/models.md", "docs/objectives.md", "docs/page.md", "docs/ranks.md",
    "docs/reading.md", "docs/replay.md", "docs/rewards.md", "docs/runs.md", "docs/serve.md", "docs/sft.md",
    "docs/simulation.md", "docs/studies.md", "docs/tasks.md", "docs/trackers.md", "docs/troubleshooting.md",
)  # fmt: skip
"""Pages whose commands are run, in their order, by `test_documented_commands.py`."""

SUBSTITUTES: dict[str, dict[str, str]] = {
    "docs/agents.md": {"recipe.toml": "guessing", "guessing": "guessing --model.path models/smollm2"},
    "README.md": {"RUN": "runs/times-tables", "RECIPE": "times-tables", "DATA.jsonl": "questions.jsonl"},
    "docs/evaluation.md": {"evals/NAME": "evals/smollm2-my-*"},
    "docs/lora.md": {
        "runs/x": "runs/adapter",
        "step-20": "step-2",
        "DIR --base BASE": "models/again --base models/smollm2",
        "DIR": "models/merged",
    },
    "docs/objectives.md": {"RECIPE": "recipes/euclid.toml"},
    "docs/page.md": {"7000": "0"},  # any free port
    "docs/reading.md": {"RUN": "runs/look"},
    "docs/replay.md": {
        "eval DIR": "eval models/version-2 --task times-tables",
        "RUN": "runs/exact",
        "VERSION": "2",
        "DIR": "models/version-2",
    },
    "docs/serve.md": {"127.0.0.1:8431": "127.0.0.1:0"},
    "docs/simulation.md": {"--seeds 300": "--seeds 3"},  # tests/simulation/test_fault_seeds.py plays as many
    "docs/tasks.md": {
        "DIR": "models/made",
        "my_task:prompts": "freerun.environments.guessing:prompts",
        # The tiny model's tokens are characters.
        "sort_words.toml": "sort_words.toml --data.max_prompt_tokens 1000 --engine.cache_tokens 16384",
    },
    "docs/trackers.md": {'"tensorboard", ': ""},  # it is in .venv-trackers, and tests/tracking reads it back
}
"""Words of a page that stand for something of the reader's, and fixed ports."""

SHORT = {
    "train.num_steps": "2", "train.prompts_per_step": "2", "sampling.group_size": "2", "eval.num_samples": "1",
    "sampling.max_completion_tokens": "8", "data.max_prompt_tokens": "1000",
    "engine.num_slots": "8", "engine.cache_tokens": "16384",
}  # fmt: skip
"""Settings of every training, before those that are written in its command, which win."""
SHORT_BY_PAGE = {
    "README.md": {"train.num_threads": "1"},  # a replay has the same bits only then
    "docs/agents.md": {"rollout.max_session_tokens": "2000"},  # more than a prompt
    "docs/objectives.md": {"sft.num_steps": "2"},
    "docs/replay.md": {"train.num_steps": "42"},  # the page replays steps 30 to 40
    "docs/troubleshooting.md": {"train.num_steps": "30"},  # the page asks for step 30
}

SAID = {
    "freerun runs --rm *": "y\n",
    "freerun chat runs/questions": "What is 3 + 4?\n",
    "freerun chat models/smollm2 *": "My name is Ada. Hello!\n/reset\nWhat is my name?\n",
}
"""What is typed into a command."""
AT_A_TERMINAL = ("freerun runs --rm *",)
"""Commands that ask only a person."""

SERVING = {"freerun view *": r"page +(http\S+)", "freerun serve *": r"address +(http\S+)"}
"""Commands that run until Ctrl-C, and where they say that they can be asked."""

PLANNED = {
    "docs/agents.md": ("freerun train *", "tests/runs/test_environment_runs.py and test_tool_runs.py train"),
    "docs/objectives.md": (
        "freerun train RECIPE --objective.*",
        "tests/trainer/test_objectives.py trains with each",
    ),
    "docs/tasks.md": ("freerun train *--run.name *", "they differ in their data from those that are run"),
}
"""Trainings of a page that are run with `--dry-run`, and why."""


@dataclass(frozen=True)
class Exempt:
    """Commands that are not run by this test, and why; both are patterns of `fnmatch`."""

    page: str
    command: str
    reason: str

    def covers(self, command: Command) -> bool:
        return fnmatch.fnmatchcase(command.page, self.page) and fnmatch.fnmatchcase(command.text, self.command)


EXEMPT = [
    Exempt("*", "make *", "what builds the environments and runs the tests"),
    Exempt("*", "pip install *", "needs a network; tests/package/test_package.py installs a wheel"),
    Exempt("CONTRIBUTING.md", ".venv/bin/pytest *", "a test"),
    Exempt("docs/*.md", "for *", "a line of a loop around commands that are run"),
    Exempt("docs/*.md", "do*", "a line of a loop around commands that are run"),
    Exempt("docs/cluster.md", "*", "needs GPUs or a Ray cluster; tests/clusters/test_ray_runs.py starts one"),
    Exempt("docs/ray.md", "*", "needs Ray; tests/clusters/test_ray_runs.py"),
    Exempt("docs/vllm.md", "*", "needs vLLM; tests/clusters/test_vllm_runs.py"),
    Exempt("docs/devices.md", "*--engine.device cuda*", "needs a GPU"),
    Exempt("docs/agents.md", "VENV/bin/python *", "needs verifiers; tests/clients/test_verifiers.py"),
    Exempt("docs/planning.md", "* *planned*", "needs seconds of generating; tests/cli/test_planning_verbs.py"),
    Exempt(
        "docs/planning.md", "freerun calibrate times-tables *", "runs for a minute, and needs what it measures"
    ),
    Exempt("docs/planning.md", "* examples/*", "tests/cli/test_planning_verbs.py runs them as they are written"),
    Exempt("docs/replay.md", "*steep*", "minutes; tests/cli/test_collapse_story.py runs them together"),
    Exempt("docs/replay.md", "*cured*", "minutes; tests/cli/test_collapse_story.py runs them together"),
    Exempt("docs/replay.md", "freerun serve runs/NAME --resume", "tests/runs/test_online_runs.py"),
    Exempt("docs/first-run.md", "freerun data *", "needs a network; tests/data/test_public_sets.py"),
    Exempt("docs/sandbox.md", "freerun data *", "needs a network; tests/data/test_public_sets.py"),
    Exempt("docs/tasks.md", "freerun data *", "needs a network; tests/data/test_public_sets.py"),
    Exempt("docs/results/*", "*", "hours of measuring"),
    Exempt("docs/decisions/*", "*", "explains a choice"),
    Exempt("docs/objectives.md", "freerun study *", "24 trainings; tests/reports/test_study.py"),
    Exempt("docs/objectives.md", "freerun compare *", "of that study; tests/reports/test_compare.py"),
    Exempt("docs/studies.md", "freerun study * --seeds 5 *", "70 trainings; tests/reports/test_study.py"),
    Exempt(
        "docs/trackers.md", "freerun track *", "needs the trackers' packages; tests/tracking/test_read_back.py"
    ),
    Exempt("docs/serve.md", "*my-secret", "tests/examples/test_online_example.py runs them together"),
    Exempt("docs/serve.md", "freerun serve runs/NAME --resume", "tests/runs/test_online_runs.py"),
]


def unused_entries() -> list[str]:
    """Entries of the tables above that no command needs."""
    run = [command for page in EXECUTED for command in commands_to_run(page)]
    patterns = [*SAID, *AT_A_TERMINAL, *SERVING, *(pattern for pattern, _ in PLANNED.values())]
    unused = [p for p in patterns if not any(fnmatch.fnmatchcase(command.text, p) for command in run)]
    words = [(page, word) for page, table in SUBSTITUTES.items() for word in table]
    unused += [word for page, word in words if not any(word in c.line for c in run if c.page == page)]
    return unused + [str(each) for each in EXEMPT if not any(each.covers(c) for c in all_commands())]


def commands_to_run(page: str) -> list[Command]:
    return [c for c in commands_of(ROOT / page) if not any(each.covers(c) for each in EXEMPT)]


def is_planned(command: Command) -> bool:
    pattern, _ = PLANNED.get(command.page, ("", ""))
    return fnmatch.fnmatchcase(command.text, pattern)


def said_to(command: Command) -> str:
    return next((text for pattern, text in SAID.items() if fnmatch.fnmatchcase(command.text, pattern)), "")


def is_asked_at_a_terminal(command: Command) -> bool:
    return any(fnmatch.fnmatchcase(command.text, pattern) for pattern in AT_A_TERMINAL)


def address_pattern(command: Command) -> str:
    """Empty for a command that ends by itself."""
    return next((found for pattern, found in SERVING.items() if fnmatch.fnmatchcase(command.text, pattern)), "")


def as_run(command: Command) -> str:
    """The line for a shell."""
    line = command.line
    for word, replacement in SUBSTITUTES.get(command.page, {}).items():
        line = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)" if word.isalnum() else re.escape(word), replacement, line)
    if is_planned(command) and not command.is_planned_only:
        line = line.partition("  #")[0] + " --dry-run"
    if command.words[1:2] == ("train",) and not {"--resume", "--help", "--dry-run"} & {*command.words}:
        settings = SHORT | SHORT_BY_PAGE.get(command.page, {})
        short = " ".join(f"--{key} {value}" for key, value in settings.items())
        line = re.sub(r"freerun train \S+", rf"\g<0> {short}", line, count=1)
    return line


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}$\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
SUMS = [{"question": f"{a} + {b}", "answer": str(a + b)} for a in range(6) for b in range(6)]
CHATS = [
    [{"role": "user", "content": f"{a} + {b}?"}, {"role": "assistant", "content": str(a + b)}]
    for a in range(5) for b in range(5)
]  # fmt: skip
ROWS: dict[str, list[dict[str, Any]]] = {
    "my.jsonl": SUMS,
    "sums.jsonl": SUMS,
    "mine.jsonl": SUMS,
    "questions.jsonl": [{"question": f"What is {a} + {b}?", "answer": a + b} for a in range(6) for b in range(6)],
    "chats.jsonl": [{"messages": chat} for chat in CHATS],
    "data/svamp/test.jsonl": [
        {"Body": f"Ann has {a} stamps.", "Question": f"With {b} more?", "Answer": a + b}
        for a in range(6) for b in range(6)
    ],
}  # fmt: skip


def prepare(directory: Path, page: str) -> None:
    """A directory as a reader of the page has it: the checkout's recipes and examples, a model, data, files."""
    for name in ("recipes", "examples"):
        (directory / name).symlink_to(ROOT / name)
    model = directory / "models" / "smollm2"
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 16}
    make_tiny(model, alphabet=string.printable, **sizes)
    (model / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    for name, rows in ROWS.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for block in (block for language in ("python", "toml") for block in blocks(ROOT / page, language)):
        if named := re.match(r"# ([\w.]+\.(?:py|toml))\n", block):
            (directory / named[1]).write_text(block)
    program = directory / ".venv" / "bin" / "freerun"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m freerun.cli.main "$@"\n')
    program.chmod(0o755)


def all_commands() -> list[Command]:
    return [command for page in PAGES for command in commands_of(page)]


def is_accounted_for(command: Command) -> bool:
    """Whether it is run, or exempt; what the text of other pages mentions is not a command to a reader."""
    runs = command.page in EXECUTED
    return runs or command.is_inline or any(each.covers(command) for each in EXEMPT)
