"""Heavy optional implementations of the seams: vLLM and Ray."""
