"""Rollout workers around vLLM servers."""
