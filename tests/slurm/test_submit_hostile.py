"""Names with shell, Slurm or Hydra syntax work or give a clear error."""

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import cli, finish, queue, quote, refused, submit, wait_for_step

pytestmark = pytest.mark.slurm


def test_run_in_hostile_folder_finishes(cluster: Cluster, shared_dir: Path) -> None:
    """Spaces, quotes, `$()` and more in the run directory, the comment and the path of Python."""
    folder = shared_dir / """a b'c"d;$(touch pwned)`touch pwned`&|<>*?[x]{y}~#!é"""
    folder.mkdir()
    run = folder / "run $(touch pwned)"
    comment = """it's "mine" $(touch pwned); touch pwned `touch pwned` %j \\\\n"""
    submit(cluster, run, make_light_python(folder), f"cluster.slurm.comment={quote(comment)}")
    wait_for_step(run)
    assert "running" in cli(cluster, folder, "status", str(run)).stdout
    assert "resumes after" in cli(cluster, folder, "logs", str(run)).stdout
    shown = cluster.run(["scontrol", "show", "job", "-o"]).stdout
    assert comment.replace("\\\\", "\\") in shown or "it's" in shown
    finish(run)
    assert {path.stem for path in (run / "attempts" / "1" / "logs").glob("node-*.log")} == {"node-0", "node-1"}
    assert list(shared_dir.rglob("pwned")) == []


@pytest.mark.parametrize(
    "words",
    [
        ["run_dir='a%jb'"],
        [r"run_dir='a\\b'"],
        ["run_dir='a\nb'"],
        ["run_dir='a\x1b[31mb'"],
        ["name='a b'"],
        ["name='$(touch pwned)'"],
        ["name=--wrap"],
        ["cluster.slurm.partition='$(touch pwned)'"],
        ["cluster.slurm.partition='main --wrap=true'"],
        ["cluster.slurm.partition='a\nb'"],
        ["cluster.slurm.comment='a\nb'"],
        ["cluster.slurm.nodelist='$(touch pwned)'"],
        ["cluster.slurm.dependency='`touch pwned`'"],
        ["+cluster.slurm.extra.wrap='touch pwned'"],
        ["+cluster.slurm.extra.test_only=true"],
        ["+cluster.slurm.extra={'--wrap': 'touch pwned'}"],
        ["cluster.env={'A=B': x}"],
        ["cluster.python='a\nb'"],
        ["job.time_limit='1; touch pwned'"],
    ],
)
def test_hostile_input_is_refused_with_cause(session_cluster: Cluster, shared_dir: Path, words: list[str]) -> None:
    done = refused(session_cluster, shared_dir, "+exp=demo", "+cluster=slurm_cpu", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("slurm_rl: ")
    assert "Traceback" not in done.stderr
    assert queue(session_cluster) == ""
    assert list(shared_dir.iterdir()) == []
