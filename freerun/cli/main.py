"""The entry point: finds the verb, imports only its module, and turns errors into exit codes.

    0 success    2 an error that the user can act on, as one line on stderr    130 interrupted

A bug keeps its traceback. Neither this module nor the top of any verb's module imports torch.
"""

import difflib
import importlib
import sys
from collections.abc import Sequence

from freerun import __version__
from freerun.cli.streams import ReaderGoneError, harmless, standard_streams
from freerun.errors import EXIT_INTERRUPTED, FreerunError
from freerun.processes.interpreter import search_current_directory_last
from freerun.processes.shortage import describe_shortage

VERBS = {
    "train": "train a model by a recipe, or resume a run",
    "sft": "fine-tune a model on demonstrations: prompts with completions, or chats",
    "eval": "measure a model or a run's checkpoint on held-out prompts, with intervals",
    "serve": "serve a model or a run's checkpoint to clients of OpenAI and Anthropic",
    "chat": "talk to a model or a run's checkpoint in the terminal",
    "model": "make a model directory: SmolLM2-135M, or a tiny one for a task",
    "init": "write a first recipe for a file of questions and answers",
    "recipes": "list the recipes that come with freerun, or print one",
    "data": "fetch the public data sets that recipes name, or list them",
    "runs": "list the runs in a directory, or remove some",
    "watch": "watch a run that was started elsewhere, until it ends",
    "show": "show a run: its summary, or its completions with rewards, ages and weights",
    "view": "show runs in a browser, live or later",
    "report": "write a run's page as one HTML file",
    "compare": "compare runs over seeds, or evaluations prompt by prompt",
    "track": "report a run to TensorBoard, W&B, MLflow and others, while it lives or after",
    "trace": "write a run's timeline for Perfetto",
    "replay": "train a run's recorded batches again and compare every version's checksum",
    "fork": "continue from a version of a run with other settings, as a new run",
    "bisect": "find the step where a run collapsed, and the samples that carried it",
    "regrade": "grade a run's completions again, and say which rewards change",
    "plan": "divide GPUs between rollouts and training, and say what limits a recipe on them",
    "calibrate": "measure how long a recipe's engine, trainer, loads and grades take, or read it from a run",
    "simulate": "run a recipe with simulated workers in virtual time, or the real controller with faults by seed",
    "study": "run a recipe over settings and seeds, and report with intervals",
}
"""One module of `freerun.cli` per verb, each with `run(arguments) -> exit code`."""
RUNS = ("train", "sft", "study", "fork")
"""Verbs whose results are in a directory: they continue when their output cannot be written."""

HELP = """\
usage: freerun VERB [...]

Fully asynchronous reinforcement learning for language models.

{verbs}

start here:
  freerun recipes
  freerun model smollm2 models/smollm2
  freerun train times-tables
  freerun train times-tables --dry-run --buffer.max_staleness 0

"freerun VERB --help" explains a verb; "freerun train --help" lists every configuration key.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    is_run = given[:1] and given[0] in RUNS and not {"--dry-run", "--help", "-h"} & set(given)
    with standard_streams(is_output_needed=not is_run):
        try:
            code = _dispatch(given)
            if sys.stdout:
                sys.stdout.flush()
            return code
        except ReaderGoneError:
            return 0
        except FreerunError as error:
            print(f"freerun: {harmless(str(error))}", file=sys.stderr)
            return 2
        except (OSError, RuntimeError) as error:
            shortage = describe_shortage(error)
            if not shortage:
                raise
            print(f"freerun: {shortage}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("freerun: interrupted", file=sys.stderr)
            return EXIT_INTERRUPTED


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {verb:<9}{summary}" for verb, summary in VERBS.items())), end="")
        return 0
    verb, *rest = arguments
    if verb == "--version":
        print(f"freerun {__version__}")
        return 0
    if verb not in VERBS:
        nearest = difflib.get_close_matches(verb, VERBS, n=1)
        remedy = f'did you mean "{nearest[0]}"?' if nearest else f"the verbs are {', '.join(VERBS)}"
        raise FreerunError(f'unknown verb "{verb}"; {remedy}')
    code: int = importlib.import_module(f"freerun.cli.{verb}").run(rest)
    return code


if __name__ == "__main__":
    search_current_directory_last()
    sys.exit(main())
