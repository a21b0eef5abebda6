from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.node.ray_start import patient, raylet_is_dead


def answer_at(call: int) -> tuple[list[str], Callable[[str], str]]:
    """A question that is answered at the n-th call, and what was asked."""
    asked: list[str] = []

    def ask(node: str) -> str:
        asked.append(node)
        if len(asked) < call:
            raise RuntimeError("no such node")
        return f"{node} is there"

    return asked, ask


def test_a_node_that_comes_late_is_waited_for() -> None:
    asked, ask = answer_at(3)
    assert patient(ask, lambda: False)("a1") == "a1 is there"
    assert asked == ["a1"] * 3


def test_a_node_that_cannot_come_any_more_is_not_waited_for() -> None:
    asked, ask = answer_at(3)
    with pytest.raises(RuntimeError, match="no such node"):
        patient(ask, lambda: len(asked) == 2)("a1")
    assert len(asked) == 2


def test_the_wait_has_an_end() -> None:
    asked, ask = answer_at(10**9)
    with pytest.raises(RuntimeError, match="no such node"):
        patient(ask, lambda: False, patience_s=0.5)("a1")
    assert len(asked) > 1


def test_the_raylet_is_a_living_child(tmp_path: Path) -> None:
    assert raylet_is_dead()
    raylet = tmp_path / "raylet"
    raylet.symlink_to("/bin/sleep")
    with subprocess.Popen([raylet, "300"]) as process:
        assert not raylet_is_dead()
        process.kill()
        # Dead, and not waited for yet: a zombie.
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            pass
        assert raylet_is_dead()


def test_ray_asks_for_its_node_where_we_put_patience() -> None:
    """Both names are Ray's own and private: a version that moves them must not go unseen."""
    code = """
import inspect
from ray._private import node, services
assert callable(services.get_node)
assert "ray._private.services.get_node(" in inspect.getsource(node.Node.__init__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
