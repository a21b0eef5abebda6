"""When checkpoints are copied to checkpoint.upload_url, and when they come back from there."""

import shutil
import time
from collections.abc import Collection
from pathlib import Path

from slurm_rl.data.load_data import knows_rows
from slurm_rl.errors import CheckpointError, ConfigError, RunDirError
from slurm_rl.models.checkpoint.remote import NotOursError, RemoteFolder
from slurm_rl.models.checkpoint.store import MANIFEST, CheckpointStore
from slurm_rl.run_dir.io_errors import io_error_code, next_action, written_beside
from slurm_rl.run_dir.run_dir import RunDir, append_event, read_json
from slurm_rl.run_dir.run_secret import TOKEN_VARIABLE, checkpoint_key_file

REFERENCE = "reference"


class RemoteSaver:
    """Copies of one run's checkpoints and of other folders that a fresh machine needs to resume it."""

    def __init__(self, run: RunDir, store: CheckpointStore, remote: RemoteFolder) -> None:
        self.run_dir, self.store, self.remote = run, store, remote

    def copy(self, step: int) -> None:
        """Copy the checkpoint of this step unless the copy exists."""
        start = time.perf_counter()
        if self.run_dir.reference.is_dir():
            self.remote.upload(REFERENCE, self.run_dir.reference)
        extra = [self.run_dir.metrics, self.run_dir.samples, self.run_dir.prompts]
        size = self.remote.upload(f"step-{step}", self.store.root / f"step-{step}", extra)
        seconds = round(time.perf_counter() - start, 3)
        append_event(self.run_dir, "checkpoint/copied", step=step, bytes=size, seconds=seconds)

    def copy_if_missing(self, step: int) -> None:
        """After a run that was killed between a checkpoint and its copy."""
        if not self.remote.is_complete(f"step-{step}"):
            self.copy(step)

    def prune(self, keep: int, spare: Collection[int]) -> None:
        self.remote.prune(keep, spare)

    def fetch_newer(self, local_step: int) -> bool:
        """Download the newest copy that verifies if it is newer than the local one; return whether it is.

        Raises:
            ConfigError: nothing is local, and no copy has our signature.
        """
        newer = [step for step in self.remote.steps() if step > local_step]
        foreign = []
        for step in newer:
            try:
                self._fetch(step)
            except CheckpointError as error:
                foreign += [step] if isinstance(error, NotOursError) else []
                if error.__cause__ is not None and io_error_code(error.__cause__):
                    raise  # the copy may be whole; without it the run would begin anew
                append_event(self.run_dir, "checkpoint/skipped", reason=f"copy of step {step}: {error}")
                continue
            append_event(self.run_dir, "checkpoint/fetched", step=step, url=self.remote.url)
            return True
        if foreign == newer and newer and local_step < 0:
            raise ConfigError(
                "copies of checkpoints are accepted only with the key that signed them",
                seen=f"steps {', '.join(map(str, newer))} in {self.remote.url}, none of them signed with "
                f"{checkpoint_key_file(self.run_dir)}",
                action=(
                    f"put that file of the lost run directory there; or remove it and export {TOKEN_VARIABLE} "
                    "with its original value; or set checkpoint.verify=false, if only you can write there; or choose "
                    "another run_dir to start over"
                ),
            )
        return False

    def _fetch(self, step: int) -> None:
        folder = self.store.begin(step)
        beside = self.store.root / f".run-{step}"
        try:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
            files = self.remote.download(f"step-{step}", folder, beside)
            body = read_json(folder / MANIFEST)["body"]
            files.pop(MANIFEST)
            if (body["step"], body["files"]) != (step, files):
                place = f"{self.remote.url}/step-{step}"
                raise CheckpointError("a copy must match its manifest", seen=place)
            self._fetch_reference()
            self._check_prompts(beside / self.run_dir.prompts.name)
            # Rows and checkpoint of a step belong together; local rows are older, or of steps to be repeated.
            for path in (self.run_dir.metrics, self.run_dir.samples):
                if (beside / path.name).is_file():
                    (beside / path.name).replace(path)
            self.store.commit(step, body["meta"])
        except (OSError, RunDirError, KeyError, TypeError) as error:
            raise CheckpointError(
                "a copy must be one that can be written here",
                seen=f"{type(error).__name__}: {error}",
                action=None if io_error_code(error) is None else f"{next_action(error)}, then resume",
            ) from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)
            self.store.discard(step)

    def _fetch_reference(self) -> None:
        """The reference that the warm-up made, which the policy of a later step cannot give any more."""
        if self.run_dir.reference.is_dir() or not self.remote.is_there(REFERENCE):
            return
        with written_beside(self.run_dir.reference) as folder:
            self.remote.download(REFERENCE, folder, folder)

    def _check_prompts(self, path: Path) -> None:
        if path.is_file() and self.run_dir.prompts.is_file() and not knows_rows(self.run_dir, read_json(path)):
            raise CheckpointError(
                "a copy must belong to a run with the same prompts: data, tokenizer and chat template",
                seen=f"{self.remote.url} has other ones",
                action="choose another run_dir, whose name is part of the copy's URL, or restore the old data",
            )
