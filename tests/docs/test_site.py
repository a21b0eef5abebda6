"""Every link and anchor of the docs site and README.md resolves; README.md is short."""

import re
from pathlib import Path

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.docs.markdown import DOCS, pages, read_prose
from tests.lock import ROOT

# Reference tables and generated pages may be long.
_ANY_LENGTH = ("reference/", "contributing.md", "architecture.md")
EXAMPLES = sorted((ROOT / "examples").rglob("*.md"))
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")


def build_site(docs: Path, site: Path, **settings: object) -> None:
    """Build like `mkdocs build --strict`: a warning is an error."""
    config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(site), strict=True, **settings)
    build(config)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    build_site(DOCS, folder)
    return folder


def test_site_builds_strictly(site: Path) -> None:
    assert (site / "index.html").is_file() and (site / "search/search_index.json").is_file()


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]*)"', page.read_text())
        assert fetched == [], page.name


def test_readme_has_at_most_90_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_page_is_short(page: Path) -> None:
    if not str(page.relative_to(DOCS)).startswith(_ANY_LENGTH):
        assert len(page.read_text().splitlines()) <= 150


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
