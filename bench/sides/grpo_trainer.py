"""TRL's GRPOTrainer on the CPU: trains the requested number of steps and waits in between.

    grpo_trainer.py MODEL MAX_COMPLETION_TOKENS PROMPTS_PER_STEP GROUP_SIZE MICRO_BATCH PROMPT ...

One generation, in one padded batch, serves one optimizer step. MICRO_BATCH completions are trained on at once,
with gradient accumulation over the step. Gradient checkpointing, TRL's default, is off: it trades speed for
memory.
"""

import os
import queue
import sys
import tempfile
import threading
import time
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from asked import answer
from datasets import Dataset
from instructions import reward
from memory import PeakMemory
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MAX_STEPS = 10_000


class Pace(TrainerCallback):
    """Lets the trainer take the requested steps, one request after the other."""

    def __init__(self) -> None:
        self._requests: queue.Queue[int] = queue.Queue()
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._num_left = 0
        self._lengths: list[int] = []
        self._start = 0.0

    def work(self, num_steps: int) -> dict[str, Any]:
        """Called by the thread that answers, while the trainer trains in the main one."""
        with PeakMemory(os.getpid()) as memory:
            self._requests.put(num_steps)
            figures = self._answers.get()
        return {**figures, "peak_bytes": memory.peak_bytes}

    def reward(self, prompts: list[str], completions: list[str], completion_ids: Any, **_: Any) -> list[float]:
        self._lengths += [len(ids) for ids in completion_ids]
        return [reward(p, c, "any") for p, c in zip(prompts, completions, strict=True)]

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self._num_left == 0:
            self._num_left = self._requests.get()
            self._lengths = []
            self._start = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._num_left -= 1
        if self._num_left == 0:
            seconds = time.perf_counter() - self._start
            self._answers.put({"tokens": sum(self._lengths), "seconds": seconds, "lengths": self._lengths})


def make_trainer(pace: Pace, scratch: str) -> GRPOTrainer:
    model, max_completion_tokens, prompts_per_step, group_size, micro_batch, *prompts = sys.argv[1:]
    batch_size = int(prompts_per_step) * int(group_size)
    config = GRPOConfig(
        output_dir=scratch,
        max_completion_length=int(max_completion_tokens),
        num_generations=int(group_size),
        per_device_train_batch_size=int(micro_batch),
        gradient_accumulation_steps=batch_size // int(micro_batch),
        steps_per_generation=batch_size // int(micro_batch),
        num_iterations=1,
        beta=0.0,
        temperature=1.0,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        max_steps=MAX_STEPS,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_steps=MAX_STEPS,
        report_to=[],
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa"),
        reward_funcs=pace.reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(model),
        callbacks=[pace],
    )


def _serve(pace: Pace) -> None:
    """Until the input ends; the main thread would otherwise wait forever for the next step."""
    answer(pace.work)
    os._exit(0)


def main() -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    pace = Pace()
    with tempfile.TemporaryDirectory(prefix="trl-") as scratch:
        trainer = make_trainer(pace, scratch)
        threading.Thread(target=_serve, args=(pace,), daemon=True).start()
        trainer.train()


if __name__ == "__main__":
    main()
