"""Upload logs of each attempt, whatever its outcome, and the export to checkpoint.upload_url.

    python -m slurm_rl.models.checkpoint.final_copy --run-dir <run> --attempt <n> --url <checkpoint.upload_url>

    <url>/<run>/attempt-<n>-<start>/   files/: the attempt's folder; run/: config, plan, events and metrics of the run
    <url>/<run>/export/                files/: the trained model of a finished attempt

Each has a signed manifest (remote.py) and is verified. The head agent starts it after trainer and Ray have ended;
if it could not, the controller does (launch/controller/results.py). The image of an external trainer needs fsspec.
"""

import functools
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from slurm_rl.errors import CheckpointError, SlurmRLError
from slurm_rl.models.checkpoint.remote import RemoteFolder
from slurm_rl.node.attempt import attempt_parser, open_attempt
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json
from slurm_rl.run_dir.run_secret import checkpoint_key

EXPORT = "export"


def copy_attempt(run: RunDir, attempt: AttemptDir, remote: RemoteFolder) -> list[str]:
    """Upload the logs, and the export of a finished attempt; return the uploaded names."""
    with tempfile.TemporaryDirectory(prefix="srl-final-") as folder:
        # Agents write still; a manifest is of files that do not change.
        still = Path(folder) / "attempt"
        _copy_what_stays(attempt.path, still)
        beside = [path for path in (run.config, run.plan, run.events, run.metrics) if path.is_file()]
        extra = [Path(shutil.copy(path, folder)) for path in beside]
        copied = [_copy(run, remote, f"attempt-{attempt.number}-{_started(attempt)}", still, extra)]
    finished = attempt.outcome.is_file() and read_json(attempt.outcome)["outcome"] == "finished"
    if finished and run.export.is_dir():
        copied.append(_copy(run, remote, EXPORT, run.export))
    return copied


def _copy(run: RunDir, remote: RemoteFolder, name: str, folder: Path, extra: list[Path] | None = None) -> str:
    start = time.perf_counter()
    size = remote.upload(name, folder, extra or ())
    if not remote.is_complete(name):
        raise CheckpointError("a copy must be there when it was written", seen=f"{remote.url}/{name} is not")
    seconds = round(time.perf_counter() - start, 3)
    append_event(run, "run/copied", what=name, bytes=size, seconds=seconds)
    return name


def _started(attempt: AttemptDir) -> str:
    """Start time of the attempt: a run with a lost disk counts attempts from 1 again."""
    record = read_json(attempt.node(0)) if attempt.node(0).is_file() else {}
    # Of an agent that never spoke: when the controller began the attempt.
    start = attempt.start.stat().st_mtime if attempt.start.is_file() else 0
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(record.get("phases", {}).get("starting", start)))


def _copy_what_stays(source: Path, target: Path) -> None:
    """Copy files except those that agents rename meanwhile."""
    try:
        shutil.copytree(source, target, ignore=_no_plain_files)
    except shutil.Error as error:
        # All files were tried; the error lists source, target and cause of each failure.
        if any(os.path.lexists(path) for path, *_ in error.args[0]):
            raise


def _no_plain_files(folder: str, names: list[str]) -> set[str]:
    """Sockets, pipes and links, of which Ray's folders have some."""
    paths = {name: Path(folder, name) for name in names}
    return {name for name, path in paths.items() if path.is_symlink() or not (path.is_file() or path.is_dir())}


def main() -> int:
    parser = attempt_parser("Copy the files of an attempt to checkpoint.upload_url.")
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    # Slurm signals the whole step near the limit; the agent ends this process when time is up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run, attempt = open_attempt(args)
    try:
        key = functools.partial(checkpoint_key, run, os.environ)
        remote = RemoteFolder(f"{args.url}/{run.path.name}", key=key, require_ours=run.require_ours)
        copy_attempt(run, attempt, remote)
    except (SlurmRLError, OSError) as error:
        append_event(run, "run/copy_failed", attempt=attempt.number, cause=str(error))
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
