"""Every OpenRLHF and verl name in docs/from/moving-*.md exists in the tested releases."""

import ast
from pathlib import Path

from omegaconf import OmegaConf

from tests.docs.markdown import DOCS, code_spans, read_tables
from tests.train.external.releases import RELEASES


def page_names(page: str) -> set[str]:
    return {word for row in read_tables(DOCS / page) for word in code_spans(row[0])}


def test_openrlhf_has_flags_of_its_page(packages: Path) -> None:
    known: set[str] = set()
    for file in (packages / "dotted/openrlhf/cli").glob("train_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                known |= {str(arg.value).lstrip("-") for arg in node.args if isinstance(arg, ast.Constant)}
    assert page_names("from/moving-openrlhf.md") - known == set()


def test_verl_has_keys_of_its_page(packages: Path) -> None:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(packages / "verl/verl/trainer/config"), version_base=None):
        config = compose("ppo_trainer")
    missing = object()
    absent = {
        word for word in page_names("from/moving-verl.md") if OmegaConf.select(config, word, default=missing) is missing
    }
    assert absent == set()


def test_pages_name_tested_releases() -> None:
    for page, name in (("from/moving-openrlhf.md", "dotted"), ("from/moving-verl.md", "verl")):
        assert RELEASES[name].replace("==", " ").lower() in (DOCS / page).read_text().lower()
