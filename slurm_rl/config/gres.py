"""Parse Slurm's generic resources."""

import re


def parse_gpus(gres: str) -> dict[str, int]:
    """Return the number of GPUs in a --gres, by type.

    >>> parse_gpus("gpu:a100:4(S:0,1),nvme:1"), parse_gpus("gpu:8"), parse_gpus("(null)")
    ({'a100': 4}, {'': 8}, {})
    """
    found: dict[str, int] = {}
    # Sockets are in parentheses and may contain commas.
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        match = re.fullmatch(r"gpu(?::([^:]+))??(?::(\d+))?", part.strip())
        if match:
            kind = match[1] or ""
            found[kind] = found.get(kind, 0) + int(match[2] or 1)
    return found
