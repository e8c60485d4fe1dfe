"""Supervised fine-tuning: `freerun sft`."""
