"""The worker processes and the controller's side of them: messages, rollout pool, trainer client."""
