import pytest

from slurm_rl.config.load import load_config
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.step import wrap_agent, wrap_copy

FACTS = SubmitFacts(python="/venv/bin/python", num_cpus=8, version="VERSION")
PODMAN = ("container.runtime=podman", "container.image=registry.example/rl:1")


@pytest.mark.parametrize("word", ["checkpoint.upload_url='s3://bucket/a'", "data.train='gs://bucket/rows.jsonl'"])
def test_credentials_of_bucket_are_passed_by_name(word: str) -> None:
    plan = build_plan(load_config(["+exp=demo", "name=golden", word, *PODMAN]), "/shared/a", FACTS)
    for argv in (wrap_agent(plan, 1, "7", None).argv, wrap_copy(plan, 1, "7", None).argv):
        assert "--env=AWS_SECRET_ACCESS_KEY" in argv
        assert not any(text.startswith("--env=AWS_SECRET_ACCESS_KEY=") for text in argv)


def test_credentials_are_not_passed_without_bucket() -> None:
    plan = build_plan(load_config(["+exp=demo", "name=golden", *PODMAN]), "/shared/a", FACTS)
    assert plan.secret_names == ("WANDB_API_KEY", "HF_TOKEN")
