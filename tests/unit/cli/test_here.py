from pathlib import Path

import pytest

from slurm_rl.cli.parser import parse
from slurm_rl.cli.run_in_job import run
from slurm_rl.errors import ConfigError
from slurm_rl.launch.slurm.granted import parse_counts, read_allocation

ENV = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_CPUS_PER_NODE": "72(x2)"}


@pytest.mark.parametrize("text", ["", "x", "4(x)", "4,,4", "-1"])
def test_parse_counts_expands_and_names_other_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="of the form"):
        parse_counts(text)


@pytest.mark.parametrize(
    ("env", "gpus"),
    [({}, 0), ({"SLURM_GPUS_ON_NODE": "8"}, 8), ({"SLURM_JOB_GPUS": "0,3"}, 2), ({"SLURM_GPUS_ON_NODE": ""}, 0)],
)
def test_gpus_of_allocation(env: dict[str, str], gpus: int) -> None:
    assert read_allocation({**ENV, **env}).gpus_per_node == gpus


def test_outside_of_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENV:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="inside a Slurm job"):
        run(parse("run-in-job", []))


def test_allocation_without_gpus_names_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"nvidia.*--gpus-per-node"):
        run(parse("run-in-job", ["+cluster=nvidia_h100"]))
    assert list(tmp_path.iterdir()) == []
