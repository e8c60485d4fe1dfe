"""Whether a model directory can be loaded, judged by its small files and the headers of its weights.

`--dry-run` and every start call this before starting a process; it takes milliseconds and no torch.
"""

from pathlib import Path

from freerun.model.adapter_directory import base_of, check_adapter, is_adapter
from freerun.model.companions import check_companions
from freerun.model.decoder_config import read_config
from freerun.model.weight_files import check_weights


def check_directory(directory: Path) -> None:
    """Refuse a directory that could not be loaded, or an adapter whose base could not, with the reason."""
    check_companions(directory)
    model = base_of(directory) if is_adapter(directory) else directory
    check_companions(model)
    config = read_config(model)
    check_weights(model, config)
    if is_adapter(directory):
        check_adapter(directory, config)
