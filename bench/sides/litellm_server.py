"""LiteLLM's proxy in front of a server that answers at once.

    litellm_server.py PORT UPSTREAM_PORT

One worker, one key (LITELLM_MASTER_KEY), no database, no logging: what it needs to pass a request on and its
answer back.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

from litellm import run_server
from serving import report_when_up

CONFIG = """
model_list:
  - model_name: policy
    litellm_params:
      model: openai/policy
      api_base: http://127.0.0.1:{upstream_port}/v1
      api_key: none
litellm_settings:
  telemetry: false
"""


def main() -> None:
    port, upstream_port = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="freerun-litellm-") as scratch:
        config = Path(scratch) / "config.yaml"
        config.write_text(CONFIG.format(upstream_port=upstream_port))
        report_when_up(int(port))
        arguments = ["--config", str(config), "--host", "127.0.0.1", "--port", port, "--num_workers", "1"]
        run_server(arguments, standalone_mode=False)


if __name__ == "__main__":
    main()
