"""Messages that the troubleshooting page quotes are those of the code."""

import ast
import re

from tests.docs.markdown import DOCS
from tests.lock import ROOT


def read_section(title: str) -> str:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def read_first_cells(title: str) -> list[str]:
    """Return the quoted words in the first column of a section's table."""
    rows = [line.split("|")[1] for line in read_section(title).splitlines() if line.startswith("| `")]
    return [quoted for cell in rows for quoted in re.findall(r"`([^`]+)`", cell)]


def test_quoted_messages_are_in_code() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "slurm_rl").rglob("*.py")]
    texts = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    said = "\0".join(text for text in texts if isinstance(text, str))
    messages = read_first_cells("The job died")
    parts = [part.strip() for message in messages for part in message.split("...") if part.strip()]
    assert len(messages) > 10 and [part for part in parts if part not in said] == []
