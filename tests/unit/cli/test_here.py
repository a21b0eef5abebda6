from pathlib import Path

import pytest

from slurm_rl.cli.parser import parse
from slurm_rl.cli.run_in_job import run
from slurm_rl.errors import ConfigError
from slurm_rl.launch.slurm.granted import parse_counts, read_allocation

ENV = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_CPUS_PER_NODE": "72(x2)"}


@pytest.mark.parametrize(
    ("env", "gpus"),
    [({}, 0), ({"SLURM_GPUS_ON_NODE": "8"}, 8), ({"SLURM_JOB_GPUS": "0,3"}, 2), ({"SLURM_GPUS_ON_NODE": ""}, 0)],
)
def test_read_allocation_counts_gpus(env: dict[str, str], gpus: int) -> None:
    assert read_allocation({**ENV, **env}).gpus_per_node == gpus
    for text in ("", "x", "4(x)", "4,,4", "-1"):
        with pytest.raises(ConfigError, match="of the form"):
            parse_counts(text)


def test_run_in_job_needs_allocation_with_gpus_of_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ENV:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="inside a Slurm job"):
        run(parse("run-in-job", []))
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"nvidia.*--gpus-per-node"):
        run(parse("run-in-job", ["+cluster=nvidia_h100"]))
    assert list(tmp_path.iterdir()) == []
