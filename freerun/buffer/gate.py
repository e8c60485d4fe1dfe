"""Admission control: do not start a rollout that would be too old when it is trained on.

The trainer consumes `batch_size` samples per version, each a completion or a whole session. If they finish in the
order they started, the n-th one started is consumed at version (n - 1) // batch_size; admitting it only while that
is at most version + max_staleness bounds its age before a token is generated (AReaL, arXiv 2505.24298, Eq. 3).

Two rules keep the count exact, where AReaL's drifts:

- `version` is the version that *all* engines have confirmed, not the trainer's. It may lag but never leads, so
  it is a lower bound on the version of every token sampled from now on.
- Only samples that were consumed or may still be consumed count. Those that failed or were filtered,
  dropped or requeued are given back; otherwise filtering would use up the capacity. So always
  started = consumed + buffered + running, and after a resume = consumed + buffered: what was running at the
  checkpoint is counted when it starts again.

`ahead` may be less than `max_staleness` batches: rollouts then start later (`freerun.controller.freshness`).
Lowering it takes nothing back; the capacity is 0 until the version has caught up.

Live sessions (`freerun serve RECIPE`) start when their clients do and count from when they are rated.

A slow rollout that others overtake can still arrive too old. `TrajectoryBuffer` guarantees the bound; this gate
only avoids wasted work. It counts samples and knows nothing of groups, ordinals or sequences.
"""


class StalenessGate:
    """Counts started samples; says how many more may start now."""

    def __init__(
        self,
        *,
        batch_size: int,
        max_staleness: int,
        version: int = 0,
        num_buffered: int = 0,
        ahead: int | None = None,
    ) -> None:
        """A run that resumes passes its version, the samples its buffer still holds and its `ahead`."""
        if batch_size < 1 or max_staleness < 0 or version < 0 or num_buffered < 0:
            raise ValueError(
                f"gate: batch_size = {batch_size} must be 1 or more; max_staleness = {max_staleness}, "
                f"version = {version} and num_buffered = {num_buffered} must be 0 or more"
            )
        self.batch_size = batch_size
        self.max_staleness = max_staleness
        self.version = version
        most = max_staleness * batch_size
        self.ahead = most if ahead is None else min(most, max(batch_size, ahead))
        """Samples that may start beyond the batch of `version`: from one batch to `max_staleness` of them."""
        self.started = version * batch_size + num_buffered

    @property
    def capacity(self) -> int:
        """Samples that may start now, bounded by `max_staleness` and `ahead`."""
        return max(0, (self.version + 1) * self.batch_size + self.ahead - self.started)

    def start(self, num_samples: int) -> None:
        """Count samples that start now, at `version`."""
        if not 0 <= num_samples <= self.capacity:
            raise ValueError(
                f"gate: cannot start {num_samples} samples, the capacity is {self.capacity} at "
                f"version {self.version}; wait for the next version or until capacity is given back"
            )
        self.started += num_samples

    def give_back(self, num_samples: int) -> None:
        """Return the capacity of started samples that will not be consumed."""
        if not 0 <= num_samples <= self.started:
            raise ValueError(f"gate: cannot give back {num_samples} samples, {self.started} were started")
        self.started -= num_samples

    def advance(self, version: int) -> None:
        """Note that every engine has confirmed that it generates with `version`."""
        if version < self.version:
            raise ValueError(f"gate: version {version} is older than {self.version}; versions only advance")
        self.version = version
