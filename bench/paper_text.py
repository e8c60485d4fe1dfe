"""The prose of docs/results/simulation.md around the tables that `bench/paper.py` computes."""

BEFORE = """# The simulator against published figures

None of this was run on GPUs. What [`freerun plan`](../planning.md) says about them rests on a roofline with
three constants, checked against the figures that AReaL published (arXiv 2505.24298). `.venv/bin/python -m
bench.paper` computes every table on this page again. The real controller, gate, buffer and pools run in it;
engines, trainer and graders are simulated.

{constants}

Set A is what `freerun plan` uses. It was fixed before the other figures were computed here. Set B shows what a
fit to one half of Fig. 4 says about the other half. Errors are simulated against published; absolute ones,
medians:

{summary}

So: **expect 25 % either way, and 45 % at times**, without a measurement of your own model. Ratios are no better
than the figures they are made of.

Units are thousand tokens per second, prompts included, unless a table says otherwise. H800 GPUs, 512 prompts x
16 a step, completions to 27,648 tokens, AReaL's own concurrency of one batch of trajectories, counted in whole
groups as AReaL does, its gate without our bound. The last three sections are 1.5B on 128 GPUs with set B; the
last counts samples.
"""

AFTER = """## What was tried, and what cannot be checked

**Constants that were tried.** For set A, overheads of 2, 3, 4.5 and 6 ms with attention at 0.7 and 0.85 of the
bandwidth, the MFU from least squares each time (0.21 to 0.33); the sums of squares lie between 0.045 and 0.075,
so the six times hardly tell the constants apart. For set B, overheads of 3, 4.5 and 6 ms with an MFU of 0.3 and
0.38. `--fit` repeats both. A prototype fitted 6 ms, 0.85 and 0.24 to one engine alone; with many engines, a
batch waits for the slowest, and those constants are 10 to 20 % too slow.

**Set B does not carry over.** A trainer that fits the 7B half of Fig. 4 is too fast for the 1.5B half, for Fig.
5c and for Table 1: its medians there are 18 to 44 %, and the target was 15 %. Set A, which saw none of these
figures, is a little better on each. Both are too fast where a small model trains in turns on all GPUs (verl at
1.5B): something that is not simulated costs time there.

**Fig. 6b is not reproduced.** With 24 + 8 GPUs the simulated trainer is the limit, so engines that need not wait
for their longest sequence gain nothing. The paper measures generation in a setting that it does not publish.

**The factor of 4 in Fig. 4 is an inference.** AReaL's code at that time logs the tokens of one minibatch of
four, and its benchmark divides that by the time of the whole step. With the factor, Fig. 4, Fig. 5c and Table 1
agree with each other; without it they contradict. If it is wrong, the absolute agreement of Fig. 4 is a
coincidence. Its ratios do not depend on it.

**Not published**, and therefore a choice here: the distribution of lengths (lognormal; 7B from the mean and the
share that is cut off in AReaL's log lines, 1.5B from tokens per step), the likeness of lengths within a group
(0.5), the split and the batch of the synchronous runs, the split of Table 7 (three are shown, as ratios), the
setting of Fig. 6b, transfer and reward times, evaluations and checkpoints within the hours, and everything
about the code runs (14B and 32B in Table 1). The paper has one seed and no error bars.

**Not simulated**: radix caches, speculative decoding, mixtures of experts, sessions of several turns, a network
that is shared, stragglers, thermal noise, and anything about learning. `bench/paper_world.py` has every number.

**With a measurement of your own model** none of these constants is used: a calibration takes the times from a run.
In virtual time it gives back that run within 10 % (`tests/simulation/test_calibration.py`). `python -m
bench.calibrated` compares real runs of a machine with their simulations, in five ways and in turns. What else
computes there is taken for a cost of the run, so the machine must be idle. In one repetition of 60 steps, a
calibration from an asynchronous run made the synchronous run 10 % slower than it was. A likely cause, not tested:
its stages have the machine to themselves.
"""
