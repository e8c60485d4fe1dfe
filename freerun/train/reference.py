"""The reference policy: version 0, written down before it is trained away, and read back whoever asks.

A new run and a resumed one both read the directory, so that they measure against the same bits.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from freerun.model.checkpoint import load_model, save_weights
from freerun.model.companions import copy_companions
from freerun.model.decoder import Decoder, DecoderConfig
from freerun.model.new_directory import new_directory


def keep_reference(
    state: Mapping[str, Tensor], config: DecoderConfig, directory: Path, *, companions: Path
) -> None:
    """Write the weights of version 0 as a model directory; one of a start that led nowhere is replaced."""
    shutil.rmtree(directory, ignore_errors=True)
    with new_directory(directory) as temporary:
        save_weights(state, config, temporary)
        copy_companions(companions, temporary)


def load_reference(directory: Path) -> Decoder:
    return load_model(directory).requires_grad_(False)
