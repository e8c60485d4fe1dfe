"""Heavy optional implementations of the seams: vLLM, Ray and FSDP2."""
