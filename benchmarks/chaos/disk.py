"""File system for the run that can be full, slow or frozen: ext4 on a loop device."""

import os
import subprocess
from pathlib import Path

BALLAST = ".ballast"


class Disk:
    """`path` is the mounted file system; needs root and loop devices."""

    def __init__(self, folder: Path, size_mb: int) -> None:
        self.image, self.path = folder / "disk.img", folder / "disk"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(size_mb * 1_000_000)
        # No blocks reserved for root, which would never see it full.
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(self.image)], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.path)], check=True, capture_output=True)

    def fill(self) -> None:
        """Fill the file system to the last block."""
        with (self.path / BALLAST).open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue

    def empty(self) -> None:
        (self.path / BALLAST).unlink(missing_ok=True)

    def freeze(self, *beats: tuple[float, float]) -> subprocess.Popen[bytes]:
        """Freeze and thaw repeatedly; each beat is (seconds frozen, seconds thawed).

        Runs in a separate process that also thaws if this one is killed: a process that waits for a frozen file system
        cannot be killed.
        """
        words = "; ".join(
            f"fsfreeze -f {self.path}; sleep {on}; fsfreeze -u {self.path}; sleep {off}" for on, off in beats
        )
        return subprocess.Popen(["sh", "-c", f"trap '' INT TERM HUP; {words}"], start_new_session=True)

    def close(self) -> None:
        self.empty()
        os.sync()
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)
        self.image.unlink()
