"""Asynchronous RL in one file: interruptible generation, a staleness bound, and the decoupled PPO loss.

    python examples/minimal.py        # learns to count from one digit to another, in about a minute on one core

This is the algorithm that `freerun` distributes over processes (AReaL, arXiv 2505.24298). Here everything runs in
one loop, and time is counted in ticks: one tick samples one token for every running sequence, and a training step
takes TRAIN_TICKS ticks. The run is asynchronous and still deterministic.

    prompt ─► gate ─► engine ─► reward ─► buffer ─► trainer ─► version + 1 ─┐
               ▲       ▲                                                    │
               └───────┴────── weights swapped in between two ticks ◄───────┘

Left out: processes, checkpoints, packing, evaluation and a KV cache. Every tick processes each sequence from its
start with the newest weights, which is what `engine.kv_on_load = "recompute"` computes.
"""

import copy
import random
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SLOTS = 64  # sequences the engine decodes at once
GROUP_SIZE = 8  # samples of one prompt; rewards are compared within the group
BATCH_GROUPS = 16  # groups consumed by one training step
MAX_STALENESS = 2  # the paper's eta
TRAIN_TICKS = 12  # how long a training step takes
MAX_TOKENS = 8  # longer completions are cut off
CLIP = 0.2
LR = 5e-4

# Shapes: B sequences, T positions (padded), V vocabulary.
NUM_DIGITS = 6
ALPHABET = "012345-:."
VOCABULARY, STOP = len(ALPHABET), ALPHABET.index(".")


# ---- the task: the answer to "2-5:" is "2345." -----------------------------------------------------


def make_prompt(rng: random.Random) -> str:
    first, last = sorted(rng.randrange(NUM_DIGITS) for _ in range(2))
    return f"{first}-{last}:"


def reward_of(prompt: str, completion: str) -> float:
    """The share of the answer that is right before the first mistake."""
    answer = "".join(str(digit) for digit in range(int(prompt[0]), int(prompt[2]) + 1)) + "."
    num_right = 0
    for given, wanted in zip(completion, answer, strict=False):
        if given != wanted:
            break
        num_right += 1
    return num_right / len(answer)


# ---- the policy: a small causal transformer ------------------------------------------------------


class Policy(nn.Module):
    def __init__(self, width: int = 64, num_layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(4 + MAX_TOKENS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.3)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logprobs of the next token at every position; causal, so padding on the right changes nothing."""
        length = ids_BT.shape[1]
        hidden = self.tokens(ids_BT) + self.positions(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return F.log_softmax(self.head(self.layers(hidden, mask=mask, is_causal=True)), dim=-1)


# ---- rollouts: the engine samples, the gate admits, the buffer bounds ----------------------------


@dataclass(eq=False)
class Sample:
    """A running completion: every token with its version and behaviour logprob."""

    prompt: str
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(ALPHABET[token] for token in self.ids)

    @property
    def all_ids(self) -> list[int]:
        return [ALPHABET.index(character) for character in self.prompt] + self.ids

    @property
    def is_done(self) -> bool:
        return len(self.ids) == MAX_TOKENS or STOP in self.ids


@dataclass(eq=False)
class Group:
    """The samples of one prompt, and the engine's version when they started."""

    start_version: int
    samples: list[Sample]

    @property
    def is_done(self) -> bool:
        return all(sample.is_done for sample in self.samples)


class Engine:
    """Continuous batching: between two ticks, waiting sequences take the slots of finished ones."""

    def __init__(self, policy: Policy) -> None:
        self.version = 0
        self.num_interrupts = 0
        self.waiting: list[Sample] = []
        self._policy = copy.deepcopy(policy)
        self._running: list[Sample] = []

    def load(self, policy: Policy, version: int) -> None:
        """Swap the weights; running sequences continue with their next token."""
        self._policy.load_state_dict(policy.state_dict())
        self.version = version
        self.num_interrupts += sum(bool(sample.ids) for sample in self._running)

    @torch.no_grad()
    def tick(self) -> None:
        """One token for every running sequence, all under one version."""
        self._running = [sample for sample in self._running if not sample.is_done]
        free = SLOTS - len(self._running)
        self._running += self.waiting[:free]
        del self.waiting[:free]
        if not self._running:
            return
        ids_BT, last_B = padded(self._running)
        logprobs_BV = self._policy(ids_BT)[torch.arange(len(last_B)), last_B]
        tokens_B1 = torch.multinomial(logprobs_BV.exp(), 1)
        sampled = zip(
            self._running, tokens_B1[:, 0].tolist(), logprobs_BV.gather(1, tokens_B1)[:, 0].tolist(), strict=True
        )
        for sample, token, logprob in sampled:
            sample.ids.append(token)
            sample.logprobs.append(logprob)
            sample.versions.append(self.version)


def padded(samples: list[Sample]) -> tuple[Tensor, Tensor]:
    """All sequences in one tensor, and the position of each last token (from lengths, not from padding)."""
    rows = [torch.tensor(sample.all_ids) for sample in samples]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) - 1 for row in rows])


def gate_capacity(num_started: int, version: int) -> int:
    """Groups that may start now; each version consumes BATCH_GROUPS of those started (Eq. 3)."""
    return (version + MAX_STALENESS + 1) * BATCH_GROUPS - num_started


def take_batch(groups: list[Group], version: int) -> list[Group] | None:
    """The oldest finished groups; None while too few are done or a running one would be too old next time."""
    must_go = [group for group in groups if group.start_version <= version - MAX_STALENESS]
    finished = [group for group in groups if group.is_done]
    if len(finished) < BATCH_GROUPS or not all(group.is_done for group in must_go):
        return None
    batch = sorted(finished, key=lambda group: group.start_version)[:BATCH_GROUPS]
    for group in batch:
        groups.remove(group)
    return batch


# ---- training: decoupled PPO ---------------------------------------------------------------------


def completion_logprobs(policy: Policy, samples: list[Sample]) -> Tensor:
    """Logprobs of all sampled tokens, one sequence after the other."""
    ids_BT, _ = padded(samples)
    logprobs_BTV = policy(ids_BT)
    parts = []
    for row, sample in enumerate(samples):
        start = len(sample.prompt)
        predicting = logprobs_BTV[row, start - 1 : start - 1 + len(sample.ids)]
        parts.append(predicting.gather(1, torch.tensor(sample.ids)[:, None])[:, 0])
    return torch.cat(parts)


def train(policy: Policy, optimizer: torch.optim.Optimizer, batch: list[Group]) -> float:
    """One step of two minibatch updates on groups of any staleness within the bound; returns the mean reward."""
    samples = [sample for group in batch for sample in group.samples]
    rewards = torch.tensor(
        [[reward_of(sample.prompt, sample.text) for sample in group.samples] for group in batch]
    )
    advantages = (
        ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)).flatten().tolist()
    )
    with torch.no_grad():
        # The proximal policy is the trainer's at the start of the step. The clip is centred on it, no matter how
        # stale the sampling policy is.
        proximal = completion_logprobs(policy, samples).split([len(sample.ids) for sample in samples])
    order = torch.randperm(len(samples)).tolist()
    for part in (order[::2], order[1::2]):
        chosen = [samples[i] for i in part]
        loss = decoupled_ppo_loss(
            current=completion_logprobs(policy, chosen),
            proximal=torch.cat([proximal[i] for i in part]),
            behaviour=torch.tensor([logprob for sample in chosen for logprob in sample.logprobs]),
            advantages=torch.tensor([advantages[i] for i in part for _ in samples[i].ids]),
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return float(rewards.mean())


def decoupled_ppo_loss(*, current: Tensor, proximal: Tensor, behaviour: Tensor, advantages: Tensor) -> Tensor:
    """Equation 5: clip the ratio to the proximal policy; correct for the sampling policy outside the clip."""
    ratio = torch.exp(current - proximal)
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    weight = torch.exp(proximal - behaviour)
    return -(weight * surrogate).mean()


# ---- the loop ------------------------------------------------------------------------------------


@dataclass
class Result:
    rewards: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    """Per trained trajectory: the trainer's version minus the oldest version among its tokens."""
    num_interrupts: int = 0


def run(num_steps: int, *, seed: int = 0) -> Result:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LR)
    engine, result = Engine(policy), Result()
    groups: list[Group] = []
    version = num_started = tick = 0
    done_at: int | None = None  # tick at which the current training step ends
    while version < num_steps:
        # Rollouts: start what gate and slots allow, then sample one token each. This never waits for training.
        while not engine.waiting and gate_capacity(num_started, engine.version) > 0:
            prompt = make_prompt(rng)
            group = Group(engine.version, [Sample(prompt) for _ in range(GROUP_SIZE)])
            groups.append(group)
            engine.waiting += group.samples
            num_started += 1
        engine.tick()
        tick += 1

        # Training: when idle, take the next batch; publish its weights when the step is over.
        if done_at == tick:
            version, done_at = version + 1, None
            engine.load(policy, version)
        if done_at is None and (batch := take_batch(groups, version)) is not None:
            result.staleness += [version - min(sample.versions) for group in batch for sample in group.samples]
            result.rewards.append(train(policy, optimizer, batch))
            done_at = tick + TRAIN_TICKS
    result.num_interrupts = engine.num_interrupts
    return result


def main() -> None:
    result = run(num_steps=240)
    for start in range(0, 240, 40):
        rewards = result.rewards[start : start + 40]
        print(f"steps {start + 1:3}-{start + 40:3}   mean reward {sum(rewards) / len(rewards):.2f}")
    mean = sum(result.staleness) / len(result.staleness)
    print(f"staleness: mean {mean:.2f}, max {max(result.staleness)} (bound {MAX_STALENESS})")
    print(f"interrupts: weights were swapped {result.num_interrupts:,} times under a running sequence")


if __name__ == "__main__":
    main()
