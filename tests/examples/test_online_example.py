"""examples/online.toml and its client, as docs/serve.md starts them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from live_runs import LiveRun
from tiny_runs import ROOT

from freerun.cli.main import main

KEY = "my-secret"


@pytest.mark.slow
def test_the_policy_of_the_example_learns_what_its_client_likes(tmp_path: Path) -> None:
    model = tmp_path / "euclid"
    assert main(["model", "tiny", str(model), "--task", "euclid"]) == 0
    places = ("--model.path", str(model), "--run.directory", str(tmp_path / "runs"))
    with LiveRun(ROOT / "examples" / "online.toml", "--key", KEY, *places, directory=tmp_path) as run:
        run.until_served()
        client = [sys.executable, str(ROOT / "examples" / "online_client.py"), run.url, KEY, "160"]
        done = subprocess.run(client, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert run.stop() in (0, 130), run.output
    means = [float(mean) for mean in re.findall(r": ([\d.]+)$", done.stdout, re.MULTILINE)]
    assert len(means) == 8
    assert max(means[-3:]) > means[0]
    assert run.version > 5
