"""What is measured, and how: one file for each claim, `python -m bench` for all of them."""
