"""The names by which jobs find their controller: earlier versions of slurm_rl wrote them down."""

from __future__ import annotations

import importlib.util
import pickle

import pytest

from slurm_rl.launchers.protocol import load_entry

# As submitit pickles it by reference, in a job that the first version queued.
QUEUED = (
    b"\x80\x04\x950\x00\x00\x00\x00\x00\x00\x00\x8c\x19slurm_rl.slurm.controller\x94\x8c\x0erun_controller\x94\x93\x94."
)


def test_a_job_that_an_earlier_version_queued_finds_its_controller() -> None:
    assert callable(pickle.loads(QUEUED))


def test_a_job_of_today_is_one_that_an_earlier_snapshot_can_run() -> None:
    assert pickle.dumps(load_entry(), protocol=4) == QUEUED


@pytest.mark.parametrize("name", ["slurm_rl.slurm.__main__", "slurm_rl.ray_jobs.inside"])
def test_what_here_and_ray_start_from_an_earlier_snapshot_keeps_its_name(name: str) -> None:
    assert importlib.util.find_spec(name) is not None
