"""One decoder for engine and trainer, and Hugging Face directories in and out."""
