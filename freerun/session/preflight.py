"""Everything that is checked before a run, an evaluation or a dry run starts, in one order.

    task, files ─► devices ─► graders, objective, listeners, trackers ─► weights ─► tokenizer ─► prompts, answers

`check_setup` needs only the recipe; `read_inputs` and `read_prompts` read the model's small files and the data,
and return what they read. Nothing is written, so bad input leaves no run behind. The only worker started, for a
moment, is an agent worker: only there can an episode or a tool be imported.
"""

import dataclasses
import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from freerun.config.recipe import Recipe
from freerun.config.user_code import is_user_code
from freerun.controller.checkpoint import Checkpoint
from freerun.data.demonstrations import SftData
from freerun.data.mixture import PromptStream
from freerun.data.task_prompt import check_apart
from freerun.data.tasks import check_demonstrations, check_task, has_alphabet
from freerun.data.tokenizer import Tokenizer
from freerun.errors import ConfigError, FreerunError
from freerun.evaluation.job import EvalJob
from freerun.model.adapter_directory import check_directory, check_rank, is_adapter, model_config
from freerun.model.hub import how_to_fetch, is_hub_name, local_directory
from freerun.reward.graders import check_answers, check_graders
from freerun.session.agents import check_agents
from freerun.session.build import check_backends, check_model, check_positions, make_source, reward_configs
from freerun.session.listeners import check_listeners
from freerun.session.own_objective import check_own_objective
from freerun.session.run_directory import DATA_FILE
from freerun.session.sft import make_sft_data
from freerun.trackers.registry import check_trackers
from freerun.types import Prompt


@dataclass(frozen=True)
class Inputs:
    """What a run starts from, read and checked."""

    tokenizer: Tokenizer
    source: PromptStream | None
    """None if the run has no prompts."""
    sft: SftData | None
    """None without SFT or after it."""


def check_setup(recipe: Recipe, *, is_new: bool = True, trains: bool = True, has_reward: bool = False) -> None:
    """Check the recipe alone; a resumed run does not need the files it was started from.

    With `has_reward` a function of the calling program replaces the graders.
    """
    if is_new:
        _check_data_files(recipe)
    if is_new and trains:
        _check_model_files(recipe)
    check_backends(recipe, trains=trains)
    if recipe.generates and not has_reward:
        for config in reward_configs(recipe):
            check_graders(config)
    if trains:
        check_own_objective(recipe)
        check_listeners(recipe)
        check_trackers(recipe.report.to)


def read_inputs(recipe: Recipe, model: Path, *, checkpoint: Checkpoint | None = None) -> Inputs:
    """Read and check the tokenizer in `model`, and the data from the checkpoint's position on."""
    if checkpoint is None or recipe.lora.is_on:  # otherwise the checkpoint holds all weights
        check_directory(Path(recipe.model.path))
    tokenizer = _read_tokenizer(recipe, model)
    check_rank(recipe.lora, model_config(model), model)
    if recipe.sft.path:
        check_positions("sft.max_tokens", recipe.sft.max_tokens, model)
    sft = make_sft_data(recipe, tokenizer, checkpoint)
    if not recipe.generates:
        return Inputs(tokenizer, None, sft)
    source = make_source(recipe, tokenizer, rl_checkpoint(checkpoint))
    check_apart(source.prompts())
    _check_answers(recipe, itertools.chain(source.training(), source.held_out(sys.maxsize)))
    check_agents(recipe, tokenizer, model)
    return Inputs(tokenizer, source, sft)


def rl_checkpoint(checkpoint: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint to resume RL from; None if it is one of SFT, without prompts, groups or optimizer of RL."""
    return None if checkpoint is None or checkpoint.state.sft else checkpoint


def read_prompts(job: EvalJob) -> tuple[Tokenizer, list[Prompt]]:
    """The tokenizer of an evaluation, and all prompts of its split; the prompts that will be used are checked."""
    recipe, model = job.recipe, Path(job.model)
    check_directory(model)
    tokenizer = _read_tokenizer(recipe, model)
    source = make_source(recipe, tokenizer)
    prompts = source.held_out(sys.maxsize) if job.split == "held-out" else source.training()
    _check_answers(recipe, prompts[: recipe.eval.num_prompts])
    check_agents(recipe, tokenizer, model)
    return tokenizer, prompts


def _check_answers(recipe: Recipe, prompts: Iterable[Prompt]) -> None:
    """Raise if the graders cannot read an answer; an episode may work without graders."""
    if not recipe.rollout.episode:
        check_answers(recipe.reward, prompts)


@contextmanager
def readable_rows(recipe: Recipe, rows: bytes | None) -> Iterator[Recipe]:
    """The recipe, with a program's rows in a temporary file until a run directory can hold them."""
    if rows is None:
        yield recipe
        return
    with tempfile.TemporaryDirectory(prefix="freerun-rows-") as directory:
        path = Path(directory) / DATA_FILE
        path.write_bytes(rows)
        try:
            yield dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, path=str(path)))
        except FreerunError as error:
            raise type(error)(str(error).replace(str(path), "data")) from error


def _read_tokenizer(recipe: Recipe, model: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(model)
    check_model(recipe, tokenizer, model)
    return tokenizer


def _check_model_files(recipe: Recipe) -> None:
    """Raise if there is no model to train, or no data for SFT."""
    if recipe.sft.is_on and not recipe.sft.path:
        check_demonstrations(recipe.data)
    model = Path(local_directory(recipe.model.path))
    task = recipe.data.task if recipe.generates else "file"  # SFT alone has no prompts
    kind = f"tiny {{}} --task {task}" if has_alphabet(task) else "smollm2 {}"
    if not recipe.model.path:
        make = kind.format("DIR")
        raise ConfigError(
            f'config: model.path is empty; name a model directory ("freerun model {make}" makes one)'
        )
    if is_adapter(model):
        raise ConfigError(
            f'config: model.path = "{model}" is an adapter; make a model of it and its base to train on: '
            f"freerun model merge {model} DIR"
        )
    if is_hub_name(recipe.model.path) and not model.is_dir():
        raise ConfigError(f'config: model.path = "{model}" is not a directory, and {how_to_fetch(str(model))}')
    if not (model / "config.json").is_file():
        remedy = f'"freerun model {kind.format(model)}" makes one'
        if not has_alphabet(task) and "smollm2" not in model.name.lower():
            remedy = (
                "name one, or a model on the Hugging Face hub as ORGANISATION/NAME "
                '("freerun model smollm2 models/smollm2" makes a small one)'
            )
        raise ConfigError(
            f'config: model.path = "{recipe.model.path}" is not a model directory (no config.json); {remedy}'
        )


def _check_data_files(recipe: Recipe) -> None:
    """Raise if the task does not exist, its files are missing, or no grader can read its prompts."""
    for part in recipe.data.parts.values():
        check_task(part)
        grader = part.grader or recipe.reward.grader
        if part.task.startswith("reasoning-gym/") and "reasoning-gym" not in grader and not is_user_code(grader):
            raise ConfigError(
                f'config: reward.grader = "{grader}" cannot read the answers of data.task = "{part.task}"; '
                'set reward.grader = "reasoning-gym"'
            )
