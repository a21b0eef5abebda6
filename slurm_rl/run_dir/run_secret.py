"""Secrets of a run: from SLURM_RL_TOKEN, or in 0600 files. Standard library only."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

from slurm_rl.errors import ConfigError
from slurm_rl.run_dir.run_dir import RunDir, write_text

TOKEN_VARIABLE = "SLURM_RL_TOKEN"
"""Shared secret of machines without a common run directory; it also signs copies of checkpoints. It is in no argument,
log or file, and not in the environment of an agent's child processes."""
_LEAST_LENGTH = 16


def token_from_environment(env: Mapping[str, str]) -> str | None:
    """None where the variable is not set. Raises ConfigError: it is too short to be a secret."""
    value = env.get(TOKEN_VARIABLE, "").strip()
    if value and len(value) < _LEAST_LENGTH:
        raise ConfigError(
            f"{TOKEN_VARIABLE} must have at least {_LEAST_LENGTH} characters",
            seen=f"{len(value)} characters",
            action="make one: python -c 'import secrets; print(secrets.token_hex(32))'",
        )
    return value or None


def read_secret(path: Path) -> str | None:
    """Return the content of the file; None if it does not exist."""
    return path.read_text(encoding="ascii").strip() if path.is_file() else None


def keep_secret(run: RunDir, path: Path, value: str) -> str:
    """Write the file with mode 0600."""
    run.secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
    run.secrets.chmod(0o700)
    write_text(path, value, mode=0o600)
    return value


def checkpoint_key_file(run: RunDir) -> Path:
    return run.secrets / "checkpoint-key"


def checkpoint_key(run: RunDir, env: Mapping[str, str]) -> str:
    """Return the key that signs copies of this run's checkpoints; create it in the run directory if it is missing.

    Derived from the token, it is the same on a machine without the run directory.
    """
    path = checkpoint_key_file(run)
    found = read_secret(path)
    if found is not None:
        return found
    token = token_from_environment(env)
    text = f"checkpoints:{run.path.name}".encode()
    made = hmac.new(token.encode(), text, hashlib.sha256).hexdigest() if token else secrets.token_hex(32)
    return keep_secret(run, path, made)


def token_file(run: RunDir, attempt: int) -> Path:
    return run.secrets / f"ray-token-{attempt}"


def create_token(run: RunDir, attempt: int, token: str | None = None) -> None:
    """Write the attempt's Ray token, readable by this user only.

    Args:
        token: its value where several machines derive it; by default random.
    """
    keep_secret(run, token_file(run, attempt), token or secrets.token_hex(32))
