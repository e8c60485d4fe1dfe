"""A model or a run's checkpoint behind an endpoint or in the terminal, without training."""
