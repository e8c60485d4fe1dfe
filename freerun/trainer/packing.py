"""Decides which trajectories train together: splits a step into minibatches and these into packed micro-batches.

    step ── deal_minibatches ──► minibatch ── pack_for_ranks ──► micro-batch
    one new version              one update                      one forward-backward of one rank

Pure, deterministic arithmetic on lengths; returns lists of indices. It affects only speed and memory: the trainer
normalises over the step, so no division of a minibatch into micro-batches or ranks changes a gradient.
"""

from collections.abc import Sequence


def pack_micro_batches(lengths: Sequence[int], *, capacity: int, k_min: int = 1) -> list[list[int]]:
    """Divide sequences into micro-batches of at most `capacity` tokens (AReaL, Algorithm 1).

    Longest first, into the micro-batch with room that has the fewest sequences; a new one is opened while there
    are fewer than `k_min`, or when none has room. A sequence is never split: one longer than `capacity` gets a
    micro-batch to itself, which exceeds it.
    """
    micro_batches: list[list[int]] = []
    num_tokens: list[int] = []
    # `sorted` is stable, so equal lengths keep their order and the packing is deterministic.
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [m for m, used in enumerate(num_tokens) if used + lengths[index] <= capacity]
        if len(micro_batches) < k_min or not fitting:
            micro_batches.append([index])
            num_tokens.append(lengths[index])
        else:
            chosen = min(fitting, key=lambda m: len(micro_batches[m]))
            micro_batches[chosen].append(index)
            num_tokens[chosen] += lengths[index]
    return micro_batches


def pack_for_ranks(lengths: Sequence[int], *, capacity: int, num_ranks: int) -> list[list[list[int]]]:
    """Each rank's micro-batches: the same number for every rank, with empty ones at the end if there are too few.

    Ranks wait for each other after every micro-batch, so the micro-batches of one round have similar sizes, and
    the larger one goes to the rank with fewer tokens so far.
    """
    micro_batches = pack_micro_batches(lengths, capacity=capacity, k_min=num_ranks)
    if num_ranks == 1:
        return [micro_batches]
    while len(micro_batches) % num_ranks and len(micro_batches) < len(lengths):
        num_rounds = len(micro_batches) // num_ranks + 1
        micro_batches = pack_micro_batches(lengths, capacity=capacity, k_min=num_rounds * num_ranks)
    sizes = {id(pack): sum(lengths[i] for i in pack) for pack in micro_batches}
    largest_first = sorted(micro_batches, key=lambda pack: -sizes[id(pack)])
    by_rank: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    num_tokens = [0] * num_ranks
    for start in range(0, len(largest_first), num_ranks):
        in_round = largest_first[start : start + num_ranks]
        emptiest_first = sorted(range(num_ranks), key=lambda rank: num_tokens[rank])
        for rank, pack in zip(emptiest_first, in_round, strict=False):
            by_rank[rank].append(pack)
            num_tokens[rank] += sizes[id(pack)]
        for rank in emptiest_first[len(in_round) :]:
            by_rank[rank].append([])
    return by_rank


def cut_families(trunk: int, branches: Sequence[int], *, capacity: int) -> list[list[int]]:
    """Divide the completions of one prompt into runs that fit into a micro-batch together with the prompt.

    Each run repeats the prompt, so runs are as long as the capacity allows; a branch that exceeds the capacity
    gets a run to itself.
    """
    runs: list[list[int]] = []
    num_tokens = 0
    for index, branch in enumerate(branches):
        if not runs or num_tokens + branch > capacity:
            runs.append([])
            num_tokens = trunk
        runs[-1].append(index)
        num_tokens += branch
    return runs


def deal_minibatches(lengths: Sequence[int], num_minibatches: int) -> list[list[int]]:
    """Deal trajectories like cards, round by round; with too few trajectories there are fewer minibatches.

    Neighbours in the batch belong to one group, so dealing gives every minibatch a share of every prompt and
    every age: a sample of the whole batch. With contiguous parts each update would cover only one or two
    prompts. In each round the longest trajectory goes to the minibatch with the fewest tokens, which balances
    tokens while counts differ by at most one.
    """
    num_minibatches = min(num_minibatches, len(lengths))
    minibatches: list[list[int]] = [[] for _ in range(num_minibatches)]
    num_tokens = [0] * num_minibatches
    for start in range(0, len(lengths), max(num_minibatches, 1)):
        dealt = range(start, min(start + num_minibatches, len(lengths)))
        longest_first = sorted(dealt, key=lambda i: -lengths[i])
        emptiest_first = sorted(range(num_minibatches), key=lambda m: num_tokens[m])
        for index, minibatch in zip(longest_first, emptiest_first, strict=False):
            minibatches[minibatch].append(index)
            num_tokens[minibatch] += lengths[index]
    return minibatches
