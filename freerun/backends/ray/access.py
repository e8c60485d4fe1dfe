"""Whether a run on Ray can begin: the package is there, and so is the token of the cluster it joins.

Who reaches the ports of a Ray cluster can run any code on it, so that freerun never uses one without token
authentication. This module does not import Ray: it is asked before anything is started, and by `--dry-run`.

    RAY_AUTH_TOKEN, or the file RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token    where Ray itself looks, in this order
"""

from __future__ import annotations

import importlib.util
import os
import secrets
from pathlib import Path

from freerun.config.runtime import RuntimeConfig
from freerun.errors import ConfigError

MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
TOKEN_BYTES = 32


def check_access(runtime: RuntimeConfig) -> None:
    """Refuse a run on Ray without Ray, or one that joins a cluster without its token."""
    if runtime.backend != "ray":
        return
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "runtime.backend = \"ray\" needs Ray, which is not installed; pip install 'freerun[ray]', "
            'or set runtime.backend = "local"'
        )
    if runtime.address and not _has_token():
        raise ConfigError(
            f'runtime.address = "{runtime.address}" is a Ray cluster, and its token is not here: set '
            f"{TOKEN_VARIABLE}, or copy the head's ~/.ray/auth_token to the same place here; a cluster that has "
            "none is started with RAY_AUTH_MODE=token after `ray get-auth-token --generate` (docs/ray.md)"
        )


def _has_token() -> bool:
    if os.environ.get(TOKEN_VARIABLE, "").strip():
        return True
    path = Path(os.environ.get(PATH_VARIABLE) or Path.home() / ".ray" / "auth_token")
    try:
        return bool(path.read_text().strip())
    except OSError:
        return False


def prepare_environment(runtime: RuntimeConfig) -> None:
    """Set what Ray reads when it is imported: so, before that, and inherited by the processes it starts."""
    check_access(runtime)
    os.environ[MODE_VARIABLE] = "token"
    # Of attempts to reach a cluster that does not answer: Ray's own twenty take a quarter of an hour.
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
    if not runtime.address:
        # For a cluster that this process starts and nobody else joins: never written down.
        os.environ[TOKEN_VARIABLE] = secrets.token_hex(TOKEN_BYTES)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # Ray's own switch for machines whose firewall asks about every port: all of its servers stay on loopback.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
