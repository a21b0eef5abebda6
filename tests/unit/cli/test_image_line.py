from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.launch.slurm.launcher import SlurmLauncher
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.image_file import check_image_is_there, describe_image
from slurm_rl.plan.job import JobPlan
from tests.unit.plugins.image.test_image_files import sqsh


def plan_for(*words: str) -> JobPlan:
    return build_plan(
        load_config(["+exp=demo", "+cluster=nvidia_h100", *words]), "/runs/1", SubmitFacts("python", 2, "test")
    )


def with_image(runtime: str, image: Any) -> JobPlan:
    return plan_for(f"container.runtime={runtime}", f"container.image={image}")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], None),
        (["container.runtime=podman", "container.image=localhost/rl:1"], "rl:1, from podman's store on each node or"),
        (["container.runtime=apptainer", "container.image=/nodes/only/rl.sif"], "doctor asks a node"),
        (["container.runtime=pyxis", "container.image={folder}/rl.sqsh"], "/rl.sqsh (3 MB)"),
    ],
)
def test_describe_image_names_its_source(tmp_path: Path, words: list[str], line: str | None) -> None:
    (tmp_path / "rl.sqsh").write_bytes(sqsh(3_000_000))
    plan = plan_for(*(word.format(folder=tmp_path) for word in words))
    check_image_is_there(plan)
    found = describe_image(plan)
    assert found is None if line is None else line in str(found)


def test_missing_or_damaged_image_is_refused_with_remedy(tmp_path: Path) -> None:
    plan = with_image("pyxis", tmp_path / "rl.sqsh")
    with pytest.raises(ConfigError, match=r"must exist.*image build"):
        check_image_is_there(plan)
    (tmp_path / "rl.sqsh").write_bytes(sqsh(300)[:200])
    with pytest.raises(ConfigError, match=r"must be complete.*image build --force"):
        check_image_is_there(plan)


def test_relative_image_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        check_image_is_there(with_image("apptainer", "./rl.sif"))


def test_check_requests_one_node() -> None:
    plan = plan_for("cluster.slurm.partition=p", "cluster.slurm.account=a", "cluster.num_nodes=9")
    argv = SlurmLauncher().build_probe(plan, Wrapped((), ("true",), {}), 900)
    assert argv[:3] == ["srun", "--nodes=1", "--ntasks=1"]
    assert SlurmLauncher().build_probe(plan, Wrapped((), ("true",), {}), 900, num_nodes=9)[1] == "--nodes=9"
    assert {"--partition=p", "--account=a", "--gres=gpu:h100:8", "--time=15"} <= set(argv)
    assert not [word for word in argv if word.startswith(("--signal", "--output", "--open-mode", "--requeue"))]
