"""How many rows a product needs so that the bits of each row do not depend on the other rows.

A matrix product adds up in an order that depends on its number of rows: MKL has one kernel for one row, another
for two and three, and a third from four rows on. Which kernels there are depends on library, processor and
shapes, so it is measured with the model's own products.

Shapes: R rows, C columns of a weight.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from freerun.model.decoder import Decoder, Linear

MOST_PADDED = 4
"""Padding to more rows than this costs more than it is worth."""
TRIED = (1, 2, 3, 4, 5, 6, 8, 13, 24, 33)
NUM_ROWS = 48


@torch.inference_mode()
def steady_rows(model: Decoder) -> int:
    """The number of rows from which a row's bits are always the same; 1 if no small number has this property.

    Also 1 on GPUs: they choose kernels in more ways than a trial can show.
    """
    if model.embedding.weight.device.type != "cpu":
        return 1
    steady = max(_steady_from(product, num_columns, model) for product, num_columns in _products(model))
    return steady if steady <= MOST_PADDED else 1


def _products(model: Decoder) -> Iterator[tuple[Callable[[Tensor], Tensor], int]]:
    """The products of one layer, since all layers have the same shapes, and the head's."""
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
