import pytest

from slurm_rl.cli.parser import load_verbs
from slurm_rl.config.keys import list_keys
from tests.reference import FOLDER, render_plainly


@pytest.mark.parametrize("page", ["keys.md", "verbs.md"])
def test_page_is_current(page: str) -> None:
    assert (FOLDER / page).read_text(encoding="utf-8") == render_plainly()[page], "python -m tests.reference writes it"


def test_page_ignores_site_presets_and_terminal_width(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before, site = render_plainly(), tmp_path_factory.mktemp("site")
    (site / "cluster").mkdir()
    (site / "cluster" / "ours.yaml").write_text("# Ours.\n")
    monkeypatch.setenv("SLURM_RL_CONFIG_DIR", str(site))
    monkeypatch.setenv("COLUMNS", "200")
    assert render_plainly() == before


def test_keys_and_verbs_have_sections() -> None:
    keys, verbs = (render_plainly()[page] for page in ("keys.md", "verbs.md"))
    for key in list_keys().values():
        if key.is_section:
            assert f"## {key.name}\n" in keys or f"| **{key.name}** |" in keys, key.name
        else:
            assert keys.count(f"| `{key.name}` |") == 1, key.name
    for verb, row in load_verbs().by_name.items():
        assert f"## {verb}\n" in verbs
        assert f"  python -m slurm_rl {row.example}\n" in verbs
