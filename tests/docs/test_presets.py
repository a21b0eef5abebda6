"""The page of each preset group lists all of its presets."""

import pytest

from slurm_rl.config.load import conf_dir
from tests.docs.markdown import DOCS

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
