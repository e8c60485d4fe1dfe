"""All products of two one-digit numbers, asked in words: a task that a small pretrained model half knows."""

from collections.abc import Iterator

from freerun.data.task_prompt import TaskPrompt


def prompts() -> Iterator[TaskPrompt]:
    for a in range(10):
        for b in range(10):
            yield TaskPrompt(key=f"{a}*{b}", text=f"Question: What is {a} * {b}?\nAnswer:", answer=str(a * b))
