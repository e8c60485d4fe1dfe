"""How many rows a product needs so that the bits of a row do not depend on the other rows.

A matrix product adds up in an order that depends on its number of rows: MKL has a kernel for one row, another for
two and three, and from four rows on one more. Which ones depends on library, processor and shapes, so it is tried
out on the model's own products.

Shapes: R rows, C columns of a weight.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from freerun.model.decoder import Decoder, Linear

MOST_PADDED = 4
"""More rows than this cost too much for what they give."""
TRIED = (1, 2, 3, 4, 5, 6, 8, 13, 24, 33)
NUM_ROWS = 48


@torch.inference_mode()
def steady_rows(model: Decoder) -> int:
    """The number of rows from which on a row's bits are always the same; 1 if there is none that is small.

    On GPUs also 1: they choose kernels in more ways than a trial can show.
    """
    if model.embedding.weight.device.type != "cpu":
        return 1
    steady = max(_steady_from(product, num_columns, model) for product, num_columns in _products(model))
    return steady if steady <= MOST_PADDED else 1


def _products(model: Decoder) -> Iterator[tuple[Callable[[Tensor], Tensor], int]]:
    """Those of one layer, since all have the same shapes, and the head."""
    for layer in model.blocks[0].modules():
        if isinstance(layer, Linear):
            yield layer, layer.in_features
    yield model.logits, model.config.hidden_size


def _steady_from(product: Callable[[Tensor], Tensor], num_columns: int, model: Decoder) -> int:
    weight = model.embedding.weight
    rows_RC = torch.randn(NUM_ROWS, num_columns, generator=torch.Generator().manual_seed(0))
    rows_RC = rows_RC.to(weight.device, weight.dtype)
    whole = product(rows_RC)
    different = [number for number in TRIED if not torch.equal(product(rows_RC[:number]), whole[:number])]
    return max(different, default=0) + 1
