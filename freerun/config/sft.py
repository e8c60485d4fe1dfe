"""Supervised fine-tuning before version 0: on the rows of a file, or on the demonstrations of the task."""

from dataclasses import dataclass

from freerun.config.section import Section, require
from freerun.config.values import Count, CountOrNone, FilePath, GroupCount, LearningRate, ShareBelowOne


@dataclass(frozen=True)
class SftConfig(Section, name="sft"):
    path: FilePath = ""
    """A .jsonl, .json or .parquet file of demonstrations; empty takes those of data.task."""
    template: str = ""
    """Prompt of a row; {field} is replaced by the row's field. Empty: rows are chats, {"messages": [...]}."""
    completion_field: str = "completion"
    """Field of the row that is trained, as the continuation of the prompt, with an end token after it."""
    num_epochs: Count = 1
    """Times each row of the file is trained on, unless num_steps is set."""
    num_steps: CountOrNone = 0
    """Supervised steps; 0 takes num_epochs of the file, and without a file skips SFT."""
    batch_size: GroupCount = 16
    """Demonstrations per supervised step."""
    lr: LearningRate = 2e-5
    """Peak learning rate; it falls to a tenth along a cosine. An adapter needs about ten times as much."""
    warmup_steps: CountOrNone = 10
    """Steps over which the learning rate rises to its peak."""
    max_tokens: Count = 1024
    """Longer rows of the file are left out, counted and reported; rows are never cut."""
    held_out_fraction: ShareBelowOne = 0.05
    """Share of the file's rows held out to measure the loss on; 0 measures none."""
    error_rate: ShareBelowOne = 0.0
    """Share of the steps in the task's demonstrations that are wrong on purpose, to leave RL something to do."""
    eval_every_steps: Count = 50
    """The held-out loss is measured after this many steps, and always before the first and after the last."""
    save_every_steps: Count = 200
    """A checkpoint after this many steps, and always at the end and on Ctrl-C."""

    def check(self) -> None:
        require(
            not (self.path and self.error_rate),
            f"sft.error_rate = {self.error_rate} needs the demonstrations of a task; remove it or sft.path",
        )
        require(
            not self.template or self.path != "",
            f"sft.template = {self.template!r} needs sft.path, the file whose rows it is for",
        )

    @property
    def is_on(self) -> bool:
        return self.num_steps > 0 or self.path != ""
