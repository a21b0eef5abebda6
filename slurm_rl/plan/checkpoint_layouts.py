"""Checkpoint layouts of other trainers, and which checkpoint a later attempt resumes from.

Most trainers write a checkpoint under its final name and mark it as complete only afterwards, each in its own way; the
newest name may belong to a checkpoint cut off by a kill. Standard library only: the node agent runs this in the
trainer's image.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_rl.run_dir.run_dir import write_text


@dataclass(frozen=True)
class Found:
    """A checkpoint: `Found("global_step_20", 20)`."""

    name: str
    """Path below the checkpoint folder, in POSIX notation."""
    step: int


@dataclass(frozen=True)
class Layout:
    """Location of checkpoints below the folder, and the sign that one is complete."""

    patterns: tuple[str, ...]
    """Patterns of `Path.glob`; `#` is the step, only decimal digits."""
    is_whole: Callable[[Path], bool]
    """Returns whether the checkpoint in a folder is complete."""
    mend: Callable[[Path], None] | None = None
    """Repairs the chosen folder if its trainer cannot read it after a kill."""
    partial: str | None = None
    """Pattern of the temporary name of a checkpoint that is being written, if there is one."""
    blocks: str | None = None
    """Folder without which the trainer starts, but not with one that has no complete checkpoint."""

    def find(self, root: Path) -> Iterator[Found]:
        """Yield all checkpoints with such a name, complete or not, in any order.

        Raises:
            OSError: the file system cannot be read.
        """
        return self._match(root, self.patterns)

    def find_incomplete(self, root: Path) -> set[str]:
        """Return names after the newest complete checkpoint: being written, or left by an interrupted save.

        Raises:
            OSError: the file system cannot be read.
        """
        newest = self.newest(root)
        patterns = (*self.patterns, self.partial) if self.partial else self.patterns
        return {found.name for found in self._match(root, patterns) if newest is None or found.step > newest.step}

    def _match(self, root: Path, patterns: tuple[str, ...]) -> Iterator[Found]:
        for pattern in patterns:
            wanted = re.compile(re.escape(pattern.rpartition("/")[2]).replace(r"\#", r"(\d+)"))
            for path in root.glob(pattern.replace("#", "*")):
                if match := wanted.fullmatch(path.name):
                    yield Found(path.relative_to(root).as_posix(), int(match[1]))

    def newest(self, root: Path) -> Found | None:
        """Return the newest complete checkpoint; None if there is none yet.

        Raises:
            OSError: the file system cannot be read.
        """
        for found in sorted(self.find(root), key=lambda found: found.step, reverse=True):
            if self.is_whole(root / found.name):
                return found
        return None


def _always(path: Path) -> bool:
    # Written under another name and renamed.
    return path.is_dir()


@dataclass(frozen=True)
class Tracker:
    """A file next to the checkpoints that names the newest one, written after it and not atomically."""

    name: str
    last: str
    """Path in the checkpoint that is written last; it decides if a kill left the tracker empty."""

    def has_named(self, path: Path) -> bool:
        """Return whether the tracker names this checkpoint or a later one."""
        tracked = _read(path.parent / self.name)
        if tracked is None:
            return False
        return _step_of(path) <= int(tracked) if tracked.isdecimal() else (path / self.last).is_file()

    def mend(self, path: Path) -> None:
        """Write the tracker again if it is empty, as after a kill or on a full disk: trainers fail on that."""
        if not (_read(path.parent / self.name) or "").isdecimal():
            write_text(path.parent / self.name, str(_step_of(path)))


def _step_of(path: Path) -> int:
    return int(path.name.rpartition("_")[2])


def _is_latest(path: Path) -> bool:
    # DeepSpeed loads only the folder named in `latest`, which is written last.
    return _read(path.parent / "latest") == path.name


def _has_trainer_state(path: Path) -> bool:
    """transformers writes this file last; a save on SIGTERM holds a mark as long as it lasts."""
    text = _read(path / "trainer_state.json")
    try:
        return bool(json.loads(text or "")) and not (path / "checkpoint-is-incomplete.txt").exists()
    except ValueError:
        return False


def _has_both_halves(path: Path) -> bool:
    # Two processes save: torch's .metadata is the end of the one, progress.pt is renamed by the other.
    return (path / "trainer" / ".metadata").is_file() and (path / "orchestrator" / "progress.pt").is_file()


def _has_weights(path: Path) -> bool:
    # torch's .metadata, or the index of a last save for Hugging Face; torchtitan looks for them itself.
    return any((path / name).is_file() for name in (".metadata", "model.safetensors.index.json"))


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else None


_VERL = Tracker("latest_checkpointed_iteration.txt", "data.pt")
_SKYRL = Tracker("latest_ckpt_global_step.txt", "trainer_state.pt")
_MEGATRON = Tracker("latest_checkpointed_iteration.txt", ".metadata")
LAYOUTS: Final[dict[str, Layout]] = {
    "steps": Layout(("step-#",), _always),
    "verl": Layout(("global_step_#",), _VERL.has_named, _VERL.mend),
    # Folders of PPO and other rollout trainers, and of SFT, reward models and DPO.
    "openrlhf": Layout(("_actor/global_step#", "global_step#"), _is_latest),
    # Orbax renames a folder with a temporary name; for RL these are the folders of Tunix's actor.
    "maxtext": Layout(("*/checkpoints/#", "*/checkpoints/actor/#"), _always),
    "trl": Layout(("checkpoint-#",), _has_trainer_state),
    # It renames tmp_step_<k>.
    "nemo_rl": Layout(("step_#",), _always, partial="tmp_step_#"),
    "prime_rl": Layout(("*/checkpoints/step_#",), _has_both_halves),
    "skyrl": Layout(("global_step_#",), _SKYRL.has_named, _SKYRL.mend),
    "slime": Layout(("iter_#",), _MEGATRON.has_named, _MEGATRON.mend),
    # DeepSpeed's folders; it fails on a folder without `latest`, as after a kill in the first save.
    "open_instruct": Layout(("state/global_step#",), _is_latest, blocks="state"),
    "torchtitan": Layout(("checkpoint/step-#",), _has_weights),
}
"""Layouts by `external.layout`; a test compares each with the trainer's source. `steps` is `step-<k>`, our own layout
and that of a custom program, which renames the complete folder to it."""


def newest_step_by_name(root: Path) -> int:
    """Return the highest step in any of these layouts by names only, -1 for none: the measure of progress.

    Raises:
        OSError: the file system cannot be read.
    """
    return max((found.step for layout in LAYOUTS.values() for found in layout.find(root)), default=-1)


_ASKED = re.compile(r"\$\{checkpoint:([^}]*)\}")
FIELDS: Final = ("name", "step")
"""Values of `${checkpoint:...}`."""


def asks_of_checkpoint(word: str) -> list[str]:
    """
    >>> asks_of_checkpoint("a=${checkpoint:name}")
    ['name']
    """
    return _ASKED.findall(word)


def fill_checkpoint(argv: tuple[str, ...], found: Found) -> tuple[str, ...]:
    """The command line with the checkpoint's name and step in place of `${checkpoint:name}` and `${checkpoint:step}`.

    >>> fill_checkpoint(("--resume", "/run/${checkpoint:name}"), Found("step_3", 3))
    ('--resume', '/run/step_3')
    """
    return tuple(_ASKED.sub(lambda match: str(getattr(found, match[1])), word) for word in argv)
