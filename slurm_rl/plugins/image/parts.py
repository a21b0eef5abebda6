"""The bill of materials of an image: its Python distributions and Debian packages, in CycloneDX's JSON.

python3 parts.py        in an image, with nothing of ours in it: prints one line; the standard library alone
"""

from __future__ import annotations

import json
import re
import time
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

PREFIX = "slurm_rl image parts: "
_DPKG = Path("/var/lib/dpkg/status")


def collect_parts(dpkg: Path = _DPKG) -> list[tuple[str, str, str]]:
    """(kind, name, version) of all: pypi or deb."""
    found = {("pypi", re.sub(r"[-_.]+", "-", one.name).lower(), one.version) for one in metadata.distributions()}
    text = dpkg.read_text(encoding="utf-8", errors="replace") if dpkg.is_file() else ""
    for entry in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", entry, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            found.add(("deb", fields["Package"], fields["Version"]))
    return sorted(found)


def build_bom(output: str, image: str) -> dict[str, Any] | None:
    """The bill from what was printed in the image; None where that is not there."""
    told = re.findall(rf"{re.escape(PREFIX)}(.*)$", output, re.MULTILINE)
    if not told:
        return None
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "component": {"type": "container", "name": image},
        },
        "components": [
            {"type": "library", "name": name, "version": version, "purl": _purl(kind, name, version)}
            for kind, name, version in json.loads(told[-1])
        ],
    }


def _purl(kind: str, name: str, version: str) -> str:
    """https://github.com/package-url/purl-spec

    >>> _purl("pypi", "torch", "2.13.0+cpu")
    'pkg:pypi/torch@2.13.0%2Bcpu'
    """
    namespace = "debian/" if kind == "deb" else ""
    return f"pkg:{kind}/{namespace}{quote(name)}@{quote(version)}"


if __name__ == "__main__":
    print(PREFIX + json.dumps(collect_parts()), flush=True)
