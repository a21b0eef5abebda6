from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_rl.__main__ import main
from slurm_rl.cli import convert
from slurm_rl.cli.parser import load_verbs
from slurm_rl.config.load import load_config
from slurm_rl.launch.controller.create import create_run
from slurm_rl.launch.sweep.ledger import Ledger, SweepDir, SweepRun, save_ledger
from slurm_rl.models.checkpoint.store import Checkpoint
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.run_dir.io_errors import written_beside
from slurm_rl.run_dir.run_dir import RunDir, write_text
from tests.small_disk import small_disk
from tests.storage.disks import fill

# Verb -> command lines that write to the disk.
WRITES = {
    "submit": ["run_dir=@/new +exp=demo", "-m seed=1,2 cluster.run_root=@/new +exp=demo", "@/stages.yaml --dir @/new"],
    "doctor": ["doctor cluster.run_root=@/new", "doctor --nodes --exclude n1 --why slow --site-dir @/site"],
    "run-in-job": ["run-in-job run_dir=@/new +exp=demo"],
    "eval": ["eval run_dir=@/new +exp=demo +eval.sets.sums.data=addition"],
    "join": ["join run_dir=@/new +exp=demo --rank 0 --nodes 1 --head localhost"],
    "resume": ["resume @/run"],
    "report": ["report @/run", "report @/sweep"],
    "convert": ["convert @/run"],
    "init": ["init @/my-project"],
    "plan": ["plan --as dstack +exp=demo +cluster=dstack --out @/train.dstack.yml"],
}
ELSEWHERE = {"image": "unit/plugins/image/test_make_image.py", "prepare": "unit/plugins/prepare/test_text_sets.py"}
ELSEWHERE |= {"site": "unit/cli/test_site.py"}
"""Verbs that need an engine, a hub or Slurm."""
READS = {"config", "completion", "logs", "attach", "samples", "status"}
"""Verbs that write no file."""
ASKS = {"cancel"}
"""Cancels first, then writes the final state of a pending job."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, size_kb=16384) as folder:
        config = load_config(["+exp=demo"])
        run = RunDir(folder / "run")
        create_run(run, config, build_plan(config, str(run.path), SubmitFacts("/python", 4, "1")))
        sweep = SweepDir(folder / "sweep")
        save_ledger(sweep, Ledger("a", "reward/mean", False, (SweepRun(0, ("seed=1",)),)))
        write_text(sweep.run(0).plan, run.plan.read_text())
        write_text(sweep.run(0).config, run.config.read_text())
        (folder / "site" / "nodes").mkdir(parents=True)
        (folder / "stages.yaml").write_text("first: +exp=demo\n")
        fill(folder)
        yield folder


def write_model(policy: Path, model_path: str, model: object, out: Path, *rest: object, **options: object) -> int:
    """Replace the conversion, which needs torch, with a function that writes a file."""
    with written_beside(out) as folder:
        write_text(folder / "config.json", "x" * 100_000)
    return 1


def test_verbs_are_classified_by_writes() -> None:
    assert set(WRITES) | set(ELSEWHERE) | READS | ASKS == set(load_verbs().by_name)
    tests = [(Path(__file__).parents[2] / path).read_text().lower() for path in ELSEWHERE.values()]
    assert all("no space left on device" in text for text in tests)


@pytest.mark.parametrize("line", [line for lines in WRITES.values() for line in lines])
def test_full_disk_is_named_without_traceback(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(disk))
    monkeypatch.setattr("tempfile.tempdir", str(disk))
    if line.startswith("run-in-job"):
        for name, value in {"JOB_ID": "7", "JOB_NUM_NODES": "1", "JOB_CPUS_PER_NODE": "4"}.items():
            monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(convert, "find_checkpoint", lambda run, step: Checkpoint(step=1, path=run.path, meta={}))
    monkeypatch.setattr(convert, "import_heavy", lambda *_: SimpleNamespace(convert_checkpoint=write_model))
    status = main(line.replace("@", str(disk)).split())
    said = capfd.readouterr().err
    assert status in (1, 2) and "Traceback" not in said
    assert "No space left on device" in said and str(disk) in said and "Next: make room there" in said
