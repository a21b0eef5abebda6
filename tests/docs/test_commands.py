"""Every command of the docs is run, planned, or marked with the test that runs it or the reason why none does.

Commands of a page see its files (blocks with a title), prepared data, a preset `mysite`, and a stand-in for /shared.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.cli.common import compose_run
from slurm_rl.cli.parser import load_verbs, parse
from tests.docs.markdown import OF_COMMANDS, Block, code_spans, pages, read_blocks, read_prose
from tests.lock import ROOT

OURS = ["python", "-m", "slurm_rl"]
# These verbs only print; so does every verb with one of these flags.
PRINTS = {"plan", "config"}
ONLY_PRINTS = {"--help", "-h", "--cfg", "-c", "--print-template"}
# `plan` of the same arguments checks these verbs.
STARTS = {"submit", "run-in-job", "join"}
# These verbs read parts of the config of a run.
COMPOSES = {"doctor", "image"}

BLOCKS = [block for page in pages() for block in read_blocks(page)]
COMMANDS = [block for block in BLOCKS if block.language in OF_COMMANDS]


def our_words(words: list[str]) -> list[str] | None:
    """Return the words after `python -m slurm_rl`, without variables before it; None for another program."""
    first = next((place for place, word in enumerate(words) if "=" not in word), len(words))
    return words[first + 3 :] if words[first : first + 3] == OURS else None


def name_verb(words: list[str]) -> str:
    """Return the verb in the words after `python -m slurm_rl`."""
    return words[0] if words and words[0] in load_verbs().by_name else "submit"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-in for /shared: data as written by `prepare`, and presets of a site."""
    root = tmp_path_factory.mktemp("shared")
    for name in ("gsm8k", "math", "mathv60k"):
        folder = root / "data" / name
        folder.mkdir(parents=True)
        for split, first in (("train", 0), ("test", 5000)):
            rows = ({"prompt": f"{n} - {n - n % 9} =", "answer": str(n % 9)} for n in range(first, first + 2000))
            (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    shutil.copytree(ROOT / "conf" / "cluster", root / "site" / "cluster")
    template = (root / "site/cluster/site_template.yaml").read_text()
    (root / "site/cluster/mysite.yaml").write_text(template)
    return root


@pytest.fixture
def folder(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory of the commands: a new project, with `data` as the presets expect it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_RL_CONFIG_DIR", str(shared / "site"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # The rows of `shared` are made up: `plan` need not let the verifier try each answer in other processes.
    monkeypatch.setattr("slurm_rl.rewards.check_references.find_unscorable", lambda *_, **__: {})
    assert main(["init", ".", "--name", "my-project"]) == 0
    for name in ("gsm8k", "math", "mathv60k"):
        (tmp_path / "data" / name).symlink_to(shared / "data" / name)
    return tmp_path


def test_commands_are_in_checked_fences() -> None:
    starts = ("python -m", "make ", "pip install", "sbatch ", "$ ")
    loose = [
        f"{page.relative_to(ROOT)}:{number}: {line.strip()}"
        for page in pages()
        for number, line in read_prose(page)
        if line.startswith("    ") and line.strip().startswith(starts)
    ]
    hidden = [
        f"{block.place}: {block.language or 'no language'}"
        for block in BLOCKS
        if block.language not in (*OF_COMMANDS, "yaml") and block.page.parent.name != "reference"  # output of --help
        if any(line.strip().startswith(starts) for line in block.text.splitlines())
    ]
    assert loose + hidden == []


@pytest.mark.parametrize("block", COMMANDS, ids=[block.place for block in COMMANDS])
def test_unchecked_block_names_its_runner(block: Block) -> None:
    assert block.commands(), f"{block.place} has no command; text that is printed is a fence `text`"
    # `check` below covers commands that only print.
    unknown = [
        " ".join(words)
        for words in block.commands()
        if (rest := our_words(words)) is None or not (name_verb(rest) in PRINTS or ONLY_PRINTS & set(rest))
    ]
    assert block.mark or not unknown, f"{block.place} needs a mark for: {unknown}"
    if block.mark and block.mark[0] == "run by":
        path, _, name = block.mark[1].partition("::")
        assert (ROOT / path).is_file(), f"{block.place}: there is no {path}"
        assert not name or f"def {name}(" in (ROOT / path).read_text(), f"{block.place}: {path} has no {name}"


# The commands of the examples depend on each other; tests/examples runs them.
@pytest.mark.parametrize(
    "page", [page for page in pages() if page.relative_to(ROOT).parts[0] != "examples"], ids=lambda page: page.name
)
def test_commands_of_pages_are_accepted(
    page: Path, folder: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = list(read_blocks(page))
    if page.name == "README.md":
        shutil.rmtree(folder / "data")  # its commands work in a fresh clone
    for block in blocks:
        if block.title:
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text)
    for block in blocks:
        for words in block.commands() if block.language in OF_COMMANDS else []:
            expect_accepted(words, shared, block.place, capsys)
    for number, line in read_prose(page):
        for code in code_spans(line):
            if code.startswith("python -m slurm_rl ") and "..." not in code:
                expect_accepted(shlex.split(code), shared, f"{page.name}:{number}", capsys)


def expect_accepted(words: list[str], shared: Path, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    if (rest := our_words(words)) is not None:
        code = check([word.replace("/shared", str(shared)) for word in rest])
        assert code == 0, f"{place}: {' '.join(words)}\n{capsys.readouterr().err}"
        capsys.readouterr()


def check(words: list[str]) -> int:
    """Run what only prints, plan what would start a run, parse the rest; return the exit code."""
    verb = name_verb(words)
    rest = words[1:] if words and words[0] in load_verbs().by_name else words
    if verb in PRINTS or ONLY_PRINTS & set(words):
        return main(words)
    parsed = parse(verb, rest)
    if verb in COMPOSES:
        overrides = [word for word in parsed.rest if "=" in word]
        compose_run(overrides, parsed.config_dir, is_run=False)
    if verb not in STARTS or (parsed.rest and parsed.rest[0].endswith(".yaml")):
        return 0
    where = ["--config-dir", parsed.config_dir] if parsed.config_dir else []
    if not getattr(parsed, "multirun", False):
        return main(["plan", *where, *parsed.rest])
    # A sweeper's own settings are not part of a run.
    swept = [word for word in parsed.rest if not word.startswith(("hydra.", "hydra/"))]
    return max(main(["plan", *where, *(_pick(word, place) for word in swept)]) for place in (0, -1))


def _pick(word: str, place: int) -> str:
    """Return one of the values that a sweep word contains."""
    key, equals, values = word.partition("=")
    values = re.sub(r"^(?:interval|choice)\((.*)\)$", r"\1", values)
    return word if values.startswith(("[", "{", "'")) else f"{key}{equals}{values.split(',')[place]}"
