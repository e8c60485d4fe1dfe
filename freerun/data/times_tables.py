"""All products of two one-digit numbers, asked in words: what a small pretrained model half knows."""

from __future__ import annotations

from collections.abc import Iterator

from freerun.data.problem import Problem


def problems() -> Iterator[Problem]:
    for a in range(10):
        for b in range(10):
            yield Problem(key=f"{a}*{b}", text=f"Question: What is {a} * {b}?\nAnswer:", answer=str(a * b))
