"""The processes of a run: controller, workers, supervision, checkpoints."""
