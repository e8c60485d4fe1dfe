"""The real controller, pools, gate and buffer with simulated workers, in virtual time."""
