"""What is asked: where prompts come from, how they are worded, and which of them are worth asking again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from freerun.config.checks import FACTOR, TOKENS, Range, require, require_paths, require_ranges

_OF_A_MIXTURE = ("mixture", "weights", "max_prompt_tokens", "min_pass_rate", "max_pass_rate")
"""The keys that mean something for a mixture; all others belong to its parts."""
WORDING_KEYS = ("template", "answer", "answer_after", "shot_template")
"""The keys that make problems of rows; they mean nothing for a task whose problems are worded already."""


@dataclass(frozen=True)
class DataConfig:
    task: str = "file"
    """Where problems come from: file, datasets, reasoning-gym/NAME, times-tables, euclid, or "module:function"."""
    path: str = ""
    """task = "file": a .jsonl, .json or .parquet file; task = "datasets": a directory, or a name on the hub."""
    held_out_path: str = ""
    """File (task = "datasets": split) of the held-out problems; empty holds out a fraction of the others."""
    held_out_fraction: float = 0.2
    """Share of the problems kept out of training and used for evaluation."""
    settings: tuple[str, ...] = ()
    """Arguments of the task, each as name=value in TOML: "max_number=50", "size=2000", 'split="train"'."""
    template: str = "Question: {question}\nAnswer:"
    """Prompt text; {field} is replaced by the row's field."""
    system_prompt: str = ""
    """Comes before everything else: as the system message of a chat, else as a paragraph of its own."""
    use_chat_template: bool = False
    """Make a user message of the prompt text, with the model's chat template."""
    num_shots: int = 0
    """Solved training problems shown before the question; they are the same for all prompts and not trained on."""
    shot_template: str = ""
    """What a shown problem has as its completion, with {field}s of its row; empty shows the reference answer."""
    answer: str = "{answer}"
    """Reference answer; {field} is replaced by the row's field."""
    answer_after: str = ""
    """Take the reference answer after the last occurrence of this mark (GSM8K: "####")."""
    max_prompt_tokens: int = 1024
    """Longer prompts are left out, counted and reported."""
    mixture: tuple[str, ...] = ()
    """Recipes, by path or name, whose [data] sections are mixed; all keys above but the last are theirs to set."""
    weights: tuple[float, ...] = ()
    """Share of each part of the mixture, in any unit; empty mixes equal shares."""
    min_pass_rate: float = 0.0
    """A problem solved less often than this at its last visit rests for two visits before it is tried again."""
    max_pass_rate: float = 1.0
    """A problem solved more often than this at its last visit rests for two visits before it is tried again."""

    @property
    def reads_rows(self) -> bool:
        """Whether the problems are rows of data at `path`, whose keys say where they are from."""
        return self.task in ("file", "datasets")

    def __post_init__(self) -> None:
        require_ranges(
            "data",
            self,
            max_prompt_tokens=TOKENS,
            num_shots=Range(0, 10_000),
            held_out_fraction=Range(0, 1, excludes_low=True, excludes_high=True),
        )
        require_paths("data", self, "path", "held_out_path")
        require(
            0 <= self.min_pass_rate < self.max_pass_rate <= 1,
            f"data.min_pass_rate = {self.min_pass_rate} and data.max_pass_rate = {self.max_pass_rate} must be "
            "a band within 0 and 1",
        )
        if self.mixture:
            self._check_mixture()
            return
        require(self.weights == (), "data.weights needs data.mixture, the recipes that are weighed")
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
        for field in dataclasses.fields(self):
            if field.name not in _OF_A_MIXTURE:
                require(
                    getattr(self, field.name) == field.default,
                    f"data.{field.name} and data.mixture exclude each other; set it in the recipes that are mixed",
                )
        require(
            len(self.weights) in (0, len(self.mixture)),
            f"data.weights has {len(self.weights)} numbers for the {len(self.mixture)} recipes of data.mixture",
        )
        require(
            all(weight in FACTOR for weight in self.weights),
            f"data.weights = {list(self.weights)} must all lie {FACTOR}",
        )
