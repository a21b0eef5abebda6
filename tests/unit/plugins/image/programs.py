"""Fake programs on PATH that record their calls."""

import sys
from pathlib import Path


class Programs:
    """A folder that replaces PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "calls.log"
        folder.mkdir()

    def add(self, name: str, body: str = "") -> None:
        """Add a program with Python code `body`: `argv` has its arguments, `out(name)` the value of --name=value."""
        path = self.folder / name
        path.write_text(
            f"#!{sys.executable} -S\nimport sys\nfrom pathlib import Path\nargv = sys.argv[1:]\n"
            f"open({str(self.log)!r}, 'a').write(' '.join([{name!r}, *argv]) + '\\n')\n"
            "def out(name): return Path([w.partition('=')[2] for w in argv if w.startswith(f'--{name}=')][0])\n"
            f"{body}\n"
        )
        path.chmod(0o755)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []
