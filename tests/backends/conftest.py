"""Tests of optional backends use what the other tests use."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
