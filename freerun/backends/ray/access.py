"""Checks before a run on Ray: the package is installed, and the token of the cluster to join is available.

Anyone who reaches the ports of a Ray cluster can run code on it, so freerun requires token authentication. This
module does not import Ray: it is used before anything is started, and by `--dry-run`.

    RAY_AUTH_TOKEN, or the file RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token    where Ray itself looks, in this order
"""

import importlib.util
import os
import secrets
from pathlib import Path

from freerun.config.recipe import RuntimeConfig
from freerun.errors import ConfigError

MODE_VARIABLE = "RAY_AUTH_MODE"
RAY_TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
TOKEN_BYTES = 32


def check_access(runtime: RuntimeConfig) -> None:
    """Refuse a run on Ray if Ray is missing, or one that joins a cluster without its token."""
    if runtime.backend != "ray":
        return
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "runtime.backend = \"ray\" needs Ray, which is not installed; pip install 'freerun[ray]', "
            'or set runtime.backend = "local"'
        )
    if runtime.address and not _has_token():
        raise ConfigError(
            f'runtime.address = "{runtime.address}": the token of this Ray cluster is not here; set '
            f"{RAY_TOKEN_VARIABLE}, or copy the head's ~/.ray/auth_token to the same place here; for a cluster "
            "without one run `ray get-auth-token --generate` and restart it with RAY_AUTH_MODE=token (docs/ray.md)"
        )


def _has_token() -> bool:
    if os.environ.get(RAY_TOKEN_VARIABLE, "").strip():
        return True
    path = Path(os.environ.get(PATH_VARIABLE) or Path.home() / ".ray" / "auth_token")
    try:
        return bool(path.read_text().strip())
    except OSError:
        return False


def prepare_environment(runtime: RuntimeConfig) -> None:
    """Set what Ray reads when it is imported; the processes it starts inherit it."""
    check_access(runtime)
    os.environ[MODE_VARIABLE] = "token"
    # Attempts to reach a cluster that does not answer; Ray's default of twenty takes a quarter of an hour.
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
    if not runtime.address:
        # Only this process's cluster uses it, so it is never written to a file.
        os.environ[RAY_TOKEN_VARIABLE] = secrets.token_hex(TOKEN_BYTES)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # Keeps all of Ray's servers on loopback.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
