"""Reasons of pending jobs on the troubleshooting page are those of a real Slurm."""

import pytest

from tests.docs.test_troubleshooting import read_first_cells
from tests.slurm.cluster import Cluster, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

OPTIONS = {
    "Resources": ["--nodes=3", "--exclusive"],
    "Priority": ["--nodes=3", "--exclusive", "--nice=100"],
    "Dependency": ["--dependency=afterany:{first}"],
    "BeginTime": ["--begin=now+1hour"],
    "JobHeldUser": ["--hold"],
    "PartitionTimeLimit": ["--time=2-00:00:00", "--partition=high"],
    "ReqNodeNotAvail": ["--nodelist={node}"],
}


def test_reasons_of_page_are_slurms(cluster: Cluster) -> None:
    node = cluster.nodes[-1]
    cluster.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=test"])
    cluster.run(["scontrol", "update", "partition=high", "MaxTime=60"])

    def submit(*options: str) -> str:
        done = cluster.run(["sbatch", "--parsable", "--mem=100", "--output=/dev/null", *options, "--wrap", "sleep 300"])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    first = submit("--nodes=1", "--exclusive")
    jobs = {
        reason: submit(*(word.format(first=first, node=node) for word in words)) for reason, words in OPTIONS.items()
    }
    known = read_first_cells("The job is pending")
    try:
        for reason, job in jobs.items():
            assert reason in known

            def shows(job: str = job, reason: str = reason) -> bool:
                return cluster.run(["squeue", "-h", "-j", job, "-o", "%r"]).stdout.startswith(reason)

            wait_until(shows, f"job {job} to wait for {reason}", timeout_s=60)
    finally:
        cluster.run(["scontrol", "update", "partition=high", "MaxTime=INFINITE"])
