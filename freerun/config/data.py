"""What is asked: where prompts come from and how they are worded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from freerun.config.checks import require, require_positive


@dataclass(frozen=True)
class DataConfig:
    task: Literal["jsonl", "times-tables", "euclid"] = "jsonl"
    """Where prompts come from: a JSONL file, or a built-in procedural task."""
    path: str = ""
    """JSONL file of the training prompts (task = "jsonl")."""
    held_out_path: str = ""
    """JSONL file of the held-out prompts; empty holds out a fraction of the training file."""
    held_out_fraction: float = 0.2
    """Share of the problems kept out of training and used for evaluation."""
    template: str = "Question: {question}\nAnswer:"
    """Prompt text; {field} is replaced by the row's field."""
    use_chat_template: bool = False
    """Wrap the prompt text as a user message with the model's chat template."""
    answer_field: str = "answer"
    """Field of the row that holds the reference answer."""
    answer_after: str = ""
    """Take the reference answer after the last occurrence of this mark (GSM8K: "####")."""
    max_number: int = 30
    """Largest number in the problems of the euclid task."""
    max_prompt_tokens: int = 1024
    """Longer prompts are left out, counted and reported."""

    def __post_init__(self) -> None:
        require_positive("data", max_prompt_tokens=self.max_prompt_tokens)
        require(self.max_number >= 5, f"data.max_number = {self.max_number} must be at least 5")
        require(
            0 < self.held_out_fraction < 1,
            f"data.held_out_fraction = {self.held_out_fraction} must lie between 0 and 1",
        )
        if self.task == "jsonl":
            require(self.path != "", 'data.path is empty; name a JSONL file, or set data.task = "times-tables"')
