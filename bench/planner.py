"""Whether `freerun plan` chooses well: its split beside all that could be chosen, on six recipes.

    python -m bench.planner        # some five minutes of one core; deterministic

The planner simulates the few splits that a closed form likes best. Here every split that fits is simulated; the
chosen one must train within 5 % of the best. The exit code is 1 if it does not.
"""

import sys
from dataclasses import dataclass

from freerun.config.engine import EngineConfig
from freerun.config.lora import LoraConfig
from freerun.config.recipe import BufferConfig, Recipe, SamplingConfig
from freerun.config.train import TrainConfig
from freerun.simulation.hardware import GPUS
from freerun.simulation.plan import consider_setup, make_plan
from freerun.simulation.shapes import MODEL_SHAPES
from freerun.simulation.splits import Machine, candidates, setup_of
from freerun.simulation.workload import guess_workload

MAX_BEHIND = 0.05
PROMPT_TOKENS = 512


@dataclass(frozen=True)
class Case:
    """A recipe and what it is planned for."""

    model: str
    kind: str
    num_gpus: int
    mean_length: float
    longest: int
    num_prompts: int
    group_size: int
    num_slots: int
    max_staleness: int
    lora_rank: int = 0

    @property
    def recipe(self) -> Recipe:
        return Recipe(
            sampling=SamplingConfig(group_size=self.group_size, max_completion_tokens=self.longest),
            engine=EngineConfig(
                backend="vllm",
                num_workers=6,
                num_slots=self.num_slots,
                cache_tokens=self.num_slots * (self.longest + PROMPT_TOKENS),
                dtype="bfloat16",
            ),
            buffer=BufferConfig(max_staleness=self.max_staleness),
            lora=LoraConfig(rank=self.lora_rank),
            train=TrainConfig(num_steps=50, prompts_per_step=self.num_prompts, num_ranks=2, dtype="bfloat16"),
        )

    def __str__(self) -> str:
        adapter = f", lora.rank {self.lora_rank}" if self.lora_rank else ""
        return (
            f"{self.model}, {self.num_gpus} x {self.kind}, {self.num_prompts} x {self.group_size} of "
            f"{self.mean_length:,.0f} tokens, max_staleness {self.max_staleness}{adapter}"
        )


CASES = (
    Case("qwen2.5-1.5b", "h100", 8, 500, 2048, 16, 8, 64, max_staleness=4),
    Case("qwen2.5-1.5b", "h100", 16, 1000, 4096, 32, 16, 128, max_staleness=0),
    Case("qwen2.5-7b", "h100", 64, 6000, 16384, 128, 16, 128, max_staleness=8),
    Case("qwen2.5-7b", "a100", 32, 800, 4096, 64, 16, 256, max_staleness=2, lora_rank=16),
    Case("qwen2.5-14b", "h200", 32, 3000, 8192, 64, 8, 128, max_staleness=1),
    Case("qwen2.5-32b", "h100", 64, 2000, 8192, 64, 16, 256, max_staleness=4),
)


def share_of_best(case: Case) -> float:
    """What the chosen split trains, relative to the best of all."""
    recipe, machine = case.recipe, Machine(GPUS[case.kind], case.kind, MODEL_SHAPES[case.model])
    workload = guess_workload(recipe, mean=case.mean_length)
    chosen = make_plan(recipe, machine, workload, case.num_gpus).best
    possible = candidates(recipe, machine, case.num_gpus)
    considered = [consider_setup(recipe, split, setup_of(recipe, machine, split, workload)) for split in possible]
    best = max(considered, key=lambda each: each.tokens_per_second)
    share = chosen.tokens_per_second / best.tokens_per_second
    print(f"{case}: {chosen.split}, {share:.1%} of the best of {len(possible)} splits, {best.split}", flush=True)
    return share


if __name__ == "__main__":
    sys.exit(min(map(share_of_best, CASES)) < 1 - MAX_BEHIND)
