"""The controller: two loops that meet at the gate and the buffer, and the checkpoints of its state."""
