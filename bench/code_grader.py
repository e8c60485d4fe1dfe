"""The canonical solutions of HumanEval and MBPP in the code grader: how many pass, and the cost of one execution.

    python -m bench.code_grader               # all 591, about 10 seconds
    FREERUN_DATA=DIR python -m bench.code_grader

One execution is everything between the completion's text and the verdict: finding the program, three forks, both
sandboxes, the program, its tests, and cleaning up. Exits with 1 if fewer than 590 pass.
"""

import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from code_tasks import canonical_tasks, data_directory

from freerun.reward.code import judge, prove
from freerun.sandbox.sandbox import Sandbox

MIN_PASSED = 590


def main() -> None:
    directory = data_directory()
    if directory is None:
        sys.exit("HumanEval and MBPP are not here: set FREERUN_DATA to the directory that holds them")
    sandbox = Sandbox()
    prove(sandbox)
    milliseconds = []
    prompts = canonical_tasks(directory)
    num_passed = 0
    for prompt in prompts:
        start = time.perf_counter()
        verdict = judge(sandbox, prompt.prompt, prompt.completion, prompt.answer)
        milliseconds.append(1000 * (time.perf_counter() - start))
        num_passed += verdict.passed
        if not verdict.passed:
            print(f"{prompt.key}: {verdict.reason}")
    sandbox.close()
    percentiles = statistics.quantiles(milliseconds, n=20)
    print(f"{num_passed} of {len(prompts)} pass, as uid {os.getuid()}, load {os.getloadavg()[0]:.1f}")
    print(f"one execution: median {statistics.median(milliseconds):.1f} ms, 95 % under {percentiles[-1]:.1f} ms")
    sys.exit(num_passed < MIN_PASSED)


if __name__ == "__main__":
    main()
