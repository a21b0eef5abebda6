"""How other trainers keep their checkpoints, and which of them a later attempt can go on from.

Most of them write a checkpoint under its final name and only then, in their own way, that it is whole; the newest
name alone may be one that a kill cut short. Standard library alone: the node agent asks in that trainer's image.
"""

from __future__ import annotations

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
    """Its path below the checkpoint folder, in POSIX notation."""
    step: int


@dataclass(frozen=True)
class Layout:
    """Where below the checkpoint folder one lies, and what says that it is whole."""

    patterns: tuple[str, ...]
    """As `Path.glob` reads them; `#` stands for the step, decimal digits alone."""
    is_whole: Callable[[Path], bool]
    """Asked of the folder of one checkpoint."""
    mend: Callable[[Path], None] | None = None
    """What its trainer could not read after a kill is made readable, of the folder that was chosen."""

    def find(self, root: Path) -> Iterator[Found]:
        """All that bear such a name, whole or not, in any order.

        Raises:
            OSError: the file system does not let itself be read.
        """
        for pattern in self.patterns:
            wanted = re.compile(re.escape(pattern.rpartition("/")[2]).replace(r"\#", r"(\d+)"))
            for path in root.glob(pattern.replace("#", "*")):
                if match := wanted.fullmatch(path.name):
                    yield Found(path.relative_to(root).as_posix(), int(match[1]))

    def newest(self, root: Path) -> Found | None:
        """The newest whole one; None where there is none yet.

        Raises:
            OSError: the file system does not let itself be read.
        """
        for found in sorted(self.find(root), key=lambda found: found.step, reverse=True):
            if self.is_whole(root / found.name):
                return found
        return None


def _always(path: Path) -> bool:
    # Written under another name and renamed.
    return path.is_dir()


def _has_been_tracked(path: Path) -> bool:
    """verl names the newest in a file beside them, when all of it is saved. The file itself is not written at once:
    where a kill left it empty, data.pt, which is written last, tells."""
    step = int(path.name.rpartition("_")[2])
    tracker = _read(path.parent / "latest_checkpointed_iteration.txt")
    if tracker is None:
        return False
    return step <= int(tracker) if tracker.isdecimal() else (path / "data.pt").is_file()


def _mend_tracker(path: Path) -> None:
    # verl reads it whatever it is told to load, and dies of an empty one, which a kill or a full disk leaves.
    tracker = path.parent / "latest_checkpointed_iteration.txt"
    if not (_read(tracker) or "").isdecimal():
        write_text(tracker, path.name.rpartition("_")[2])


def _is_latest(path: Path) -> bool:
    # DeepSpeed loads what `latest` names and nothing else; it is written last.
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


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else None


LAYOUTS: Final[dict[str, Layout]] = {
    "steps": Layout(("step-#",), _always),
    "verl": Layout(("global_step_#",), _has_been_tracked, _mend_tracker),
    # Of PPO and all that samples; of SFT, reward models and DPO.
    "openrlhf": Layout(("_actor/global_step#", "global_step#"), _is_latest),
    # Orbax renames a folder whose name says that it is temporary; of RL they are Tunix's actor's.
    "maxtext": Layout(("*/checkpoints/#", "*/checkpoints/actor/#"), _always),
    "trl": Layout(("checkpoint-#",), _has_trainer_state),
    # It renames tmp_step_<k>.
    "nemo_rl": Layout(("step_#",), _always),
    "prime_rl": Layout(("*/checkpoints/step_#",), _has_both_halves),
}
"""By the name that `external.layout` says; a test holds each to its trainer's source. `steps`: `step-<k>`, ours and
that of a program of yours, which renames the folder to it when it is whole."""


def newest_step_by_name(root: Path) -> int:
    """The highest step in any of these layouts by names alone, -1 for none: what counts as progress.

    Raises:
        OSError: the file system does not let itself be read.
    """
    return max((found.step for layout in LAYOUTS.values() for found in layout.find(root)), default=-1)


_ASKED = re.compile(r"\$\{checkpoint:([^}]*)\}")
FIELDS: Final = ("name", "step")
"""What `${checkpoint:...}` can ask for."""


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
