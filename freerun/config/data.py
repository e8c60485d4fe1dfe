"""Where prompts come from, how they are worded, and which are skipped as too easy or too hard."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from freerun.config.section import Section, require
from freerun.config.values import Count, Factor, FilePath, Share

_OF_A_MIXTURE = ("mixture", "weights", "max_prompt_tokens", "min_pass_rate", "max_pass_rate")
"""The keys that mean something for a mixture; all others belong to its parts."""
WORDING_KEYS = ("template", "answer", "answer_after", "shot_template")
"""The keys that turn rows into prompts; they mean nothing for a task that words its prompts itself."""


@dataclass(frozen=True)
class DataConfig(Section, name="data"):
    task: str = "file"
    """Where prompts come from: file, datasets, reasoning-gym/NAME, times-tables, euclid, word-problems, or
    "module:function"."""
    path: FilePath = ""
    """task = "file": a .jsonl, .json or .parquet file, or the name on the hub of a data set that "freerun data
    get" has fetched; task = "datasets": a directory, or a name on the hub."""
    held_out_path: FilePath = ""
    """File, or OWNER/NAME:SPLIT, of the held-out prompts (task = "datasets": split); empty holds out a fraction of
    the others."""
    held_out_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """Share of the prompts kept out of training and used for evaluation."""
    settings: tuple[str, ...] = ()
    """Arguments of the task, each as name=value in TOML: "max_number=50", "size=2000", 'split="train"'."""
    template: str = "Question: {question}\nAnswer:"
    """Prompt text; {field} is replaced by the row's field."""
    system_prompt: str = ""
    """Comes first: as the system message of a chat, otherwise as a paragraph."""
    use_chat_template: bool = False
    """Send the prompt text as a user message through the model's chat template."""
    num_shots: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Solved training prompts shown before the question; the same for all prompts, and not trained on."""
    shot_template: str = ""
    """Completion of a solved prompt, with {field}s of its row; empty shows the reference answer."""
    answer: str = "{answer}"
    """Reference answer; {field} is replaced by the row's field."""
    answer_after: str = ""
    """Keep only what follows the last occurrence of this mark in the reference answer (GSM8K: "####")."""
    grader: str = ""
    """Grades these prompts in place of reward.grader: each part of a mixture may have its own."""
    max_prompt_tokens: Count = 1024
    """Longer prompts are left out, counted and reported."""
    mixture: dict[str, DataConfig] = field(default_factory=dict)
    """Recipes, by path or name, whose [data] sections are mixed; all keys above but the last are theirs to set.
    In a resolved recipe they are the sections themselves, [data.mixture.NAME]."""
    weights: tuple[Factor, ...] = ()
    """Share of each part of the mixture, in any unit; empty mixes equal shares."""
    min_pass_rate: Share = 0.0
    """A prompt whose last group was solved less often than this is skipped at its next two visits."""
    max_pass_rate: Share = 1.0
    """A prompt whose last group was solved more often than this is skipped at its next two visits."""

    @property
    def reads_rows(self) -> bool:
        """Whether the prompts are rows of `path`, whose keys say where they come from."""
        return self.task in ("file", "datasets")

    @property
    def parts(self) -> dict[str, DataConfig]:
        """The sources of prompts by name: those of the mixture, or this one."""
        return self.mixture or {self.task: self}

    @property
    def own_graders(self) -> tuple[str, ...]:
        """The graders of its parts that replace reward.grader, each once."""
        return tuple(dict.fromkeys(part.grader for part in self.parts.values() if part.grader))

    def check(self) -> None:
        require(
            self.min_pass_rate < self.max_pass_rate,
            f"data.min_pass_rate = {self.min_pass_rate} must be less than data.max_pass_rate = "
            f"{self.max_pass_rate}",
        )
        if self.mixture:
            self._check_mixture()
            return
        require(
            self.weights == (), "data.weights is set without data.mixture; name the recipes to mix, or remove it"
        )
        if self.reads_rows:
            what = "name a file" if self.task == "file" else "name a directory or a data set of the hub"
            require(self.path != "", f'data.path is empty; {what}, or set data.task = "times-tables"')
        else:
            self._check_unused(("path", "held_out_path"), "which reads no rows from there")
        if self.task == "file":
            self._check_unused(("settings",), "which takes none")

    def _check_unused(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            value = getattr(self, name)
            require(
                not value, f'data.{name} = {value!r} means nothing for data.task = "{self.task}", {why}; remove it'
            )

    def _check_mixture(self) -> None:
        for key in dataclasses.fields(self):
            if key.name not in _OF_A_MIXTURE:
                require(
                    getattr(self, key.name) == key.default,
                    f"data.{key.name} and data.mixture exclude each other; set it in the recipes that are mixed",
                )
        require(
            len(self.weights) in (0, len(self.mixture)),
            f"data.weights has {len(self.weights)} numbers for the {len(self.mixture)} recipes of data.mixture",
        )
        for name, part in self.mixture.items():
            require(
                not part.mixture,
                f'data.mixture holds "{name}", which is itself a mixture; name its recipes instead',
            )
        # One limit and one band for all parts: those of their own recipes do not count here.
        shared = {key: getattr(self, key) for key in ("max_prompt_tokens", "min_pass_rate", "max_pass_rate")}
        parts = {name: dataclasses.replace(part, **shared) for name, part in self.mixture.items()}
        object.__setattr__(self, "mixture", parts)
