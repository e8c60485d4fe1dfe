"""The chat templates of real models, from the shared data; tests that need them are skipped without it."""

from functools import cache

import pytest
from code_tasks import data_directory


@cache
def template_texts() -> dict[str, str]:
    """By name, such as `hf_qwen3`."""
    directory = data_directory()
    if directory is None or not (directory / "chat_templates").is_dir():
        pytest.skip("no chat_templates in $FREERUN_DATA or ../shared/data", allow_module_level=True)
    return {path.stem: path.read_text() for path in sorted((directory / "chat_templates").glob("*.jinja"))}
