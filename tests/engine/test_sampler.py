"""Wide distributions are searched by blocks: the same tokens as by one running sum."""

import pytest
import torch

from freerun.engine.sampler import _draw


@pytest.mark.parametrize("num_entries", [5, 256, 257, 512, 1000, 49_152])
def test_a_draw_is_where_the_running_sum_passes_the_share_of_the_total(num_entries: int) -> None:
    generator = torch.Generator().manual_seed(num_entries)
    masses = torch.rand(200, num_entries, generator=generator) ** 8
    shares = torch.rand(200, 1, generator=generator, dtype=torch.float64)
    running = masses.cumsum(dim=1, dtype=torch.float64)
    expected = torch.searchsorted(running, shares * running[:, -1:], right=True)
    entries, totals = _draw(masses, shares)
    torch.testing.assert_close(totals, running[:, -1:], rtol=1e-6, atol=0)
    # Sums of blocks round differently: a share that lies on a border may fall to the neighbour.
    assert (entries != expected).sum() <= 1
    assert (entries - expected).abs().max() <= 1


@pytest.mark.parametrize("num_entries", [7, 300, 1024])
@pytest.mark.parametrize("share", [0.0, 0.5, 1 - 2.0**-53])
def test_an_entry_without_mass_is_never_drawn(num_entries: int, share: float) -> None:
    for only in range(0, num_entries, 3):
        masses = torch.zeros(1, num_entries)
        masses[0, only] = 1.0
        entries, totals = _draw(masses, torch.tensor([[share]], dtype=torch.float64))
        assert entries.item() == only
        assert totals.item() == 1
