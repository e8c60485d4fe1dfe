"""How completions are judged."""

from __future__ import annotations

from dataclasses import dataclass

from freerun.config.checks import require, require_positive


@dataclass(frozen=True)
class RewardConfig:
    grader: str = "number"
    """number, exact, regex, math, code, or your own function as "module:function"."""
    pattern: str = ""
    """For grader = "regex": the first group of this pattern is compared with the answer."""
    requires_stop: bool = False
    """A completion that was cut off at the length limit counts as wrong."""
    correct: float = 5.0
    """Reward of a right completion (the paper's +5)."""
    incorrect: float = -5.0
    """Reward of a wrong completion (the paper's -5)."""
    num_workers: int = 1
    """Grader processes."""
    timeout_seconds: float = 10.0
    """A grade that takes longer is a failure: its process is killed and replaced."""
    max_failures_in_row: int = 16
    """This many failed groups without a success between them stop the run."""
    code_seconds: float = 8.0
    """For grader = "code": a program and its tests that take longer (wall clock) are wrong."""
    code_memory_bytes: int = 512 * 1024 * 1024
    """For grader = "code": address space of each process of a program."""
    sandbox_without: tuple[str, ...] = ()
    """Parts of the sandbox this machine may lack: namespaces, landlock, seccomp (docs/sandbox.md)."""

    def __post_init__(self) -> None:
        require_positive(
            "reward",
            num_workers=self.num_workers,
            timeout_seconds=self.timeout_seconds,
            max_failures_in_row=self.max_failures_in_row,
            code_seconds=self.code_seconds,
            code_memory_bytes=self.code_memory_bytes,
        )
        require(self.correct > self.incorrect, "reward.correct must be greater than reward.incorrect")
        if self.grader == "regex":
            require(self.pattern != "", 'reward.pattern is empty; reward.grader = "regex" needs one')
        if self.grader == "code":
            require(
                self.code_seconds < self.timeout_seconds,
                f"reward.code_seconds = {self.code_seconds} must be less than reward.timeout_seconds = "
                f"{self.timeout_seconds}, after which the grade is a failure",
            )
