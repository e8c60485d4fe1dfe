"""The machine's peak: large float32 matrix products, the best of several."""

import time

import torch
from asked import answer

SIZE = 2048
NUM_PRODUCTS = 8


def work(*, num_threads: int) -> dict[str, float]:
    torch.set_num_threads(num_threads)
    seconds = []
    for _ in range(NUM_PRODUCTS):
        started = time.perf_counter()
        torch.mm(a, b, out=c)
        seconds.append(time.perf_counter() - started)
    return {"flop_per_second": 2 * SIZE**3 / min(seconds)}


a, b, c = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE), torch.empty(SIZE, SIZE)
answer(work)
