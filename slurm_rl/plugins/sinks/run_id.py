"""Id of a run on tracking servers, so that every attempt continues there."""

import secrets

from slurm_rl.run_dir.run_dir import RunDir, write_text


def load_id(run: RunDir) -> str:
    """Return the id, created by the first attempt."""
    path = run.path / "run_id"
    if not path.is_file():
        write_text(path, secrets.token_hex(8) + "\n")
    return path.read_text(encoding="utf-8").strip()
