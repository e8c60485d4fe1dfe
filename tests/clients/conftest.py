"""An engine for the tests of a file. Puts tests/support on the path."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from chat_templates import template_texts
from engine_rig import EngineRig
from loaded_dice import LoadedDice
from tokenizer_kinds import byte_level, load

import freerun.engine.engine
from freerun.data.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def engine_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineRig]:
    """With the chat template of Qwen2.5, which tells the policy of its tools."""
    directory = tmp_path_factory.mktemp("tokenizer")
    load(directory, byte_level())
    (directory / "chat_template.jinja").write_text(template_texts()["hf_qwen2_5"])
    dice = LoadedDice()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(freerun.engine.engine, "sample", dice)
        yield EngineRig(Tokenizer.load(directory), dice)
