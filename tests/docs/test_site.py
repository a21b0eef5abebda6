"""Every link and anchor of the docs site and README.md resolves; README.md is short."""

import re
from pathlib import Path

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

from slurm_rl.config.preset_folders import conf_dir
from tests.docs.markdown import DOCS, pages, read_prose
from tests.lock import ROOT

# Reference tables and generated pages may be long.
_ANY_LENGTH = ("reference/", "contributing.md", "architecture.md")
EXAMPLES = sorted((ROOT / "examples").rglob("*.md"))
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")


def test_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """As by `mkdocs build --strict`, a warning is an error."""
    build(load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(DOCS), site_dir=str(tmp_path), strict=True))
    assert (tmp_path / "index.html").is_file() and (tmp_path / "search/search_index.json").is_file()
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]*)"', page.read_text())
        assert fetched == [], page.name


def test_pages_are_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90
    short = [page for page in DOCS.rglob("*.md") if not str(page.relative_to(DOCS)).startswith(_ANY_LENGTH)]
    assert [page.name for page in short if len(page.read_text().splitlines()) > 150] == []


@pytest.mark.parametrize("page", [*pages(), *EXAMPLES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_hold_as_plain_markdown(page: Path) -> None:
    for number, line in read_prose(page):
        for path, anchor in _LINK.findall(re.sub(r"`[^`]*`", "", line)):
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}:{number}: {path}"
            if anchor:
                heads = {slug(text) for _, text in read_prose(target) if text.startswith("#")}
                assert anchor[1:] in heads, f"{page.name}:{number}: {path}{anchor}"


def slug(head: str) -> str:
    """Return the anchor of a heading, as GitHub and mkdocs build it."""
    text = re.sub(r"[^\w\s-]", "", head.lstrip("#").strip().replace("`", "")).lower()
    return re.sub(r"\s+", "-", text)


def test_pages_are_in_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r"([\w/-]+\.md)", str(yaml.safe_load(text)["nav"])))
    assert named == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


PAGES = {"algorithm": "algorithms.md", "reward": "rewards.md", "data": "data.md"}


@pytest.mark.parametrize("group", PAGES)
def test_page_lists_presets_of_group(group: str) -> None:
    text = (DOCS / PAGES[group]).read_text()
    presets = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    assert presets and [name for name in presets if f"`{name}`" not in text and f"+{group}={name}`" not in text] == []


def test_page_lists_external_experiments() -> None:
    text = (DOCS / "other-trainers.md").read_text()
    experiments = (path for path in (conf_dir() / "exp").glob("*.yaml") if "/external/" in path.read_text())
    assert [path.stem for path in experiments if f"`+exp={path.stem}`" not in text] == []
