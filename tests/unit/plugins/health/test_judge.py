from dataclasses import astuple

import pytest

from slurm_rl.config.preflight import CHECKS
from slurm_rl.plugins.health.judge import Verdicts, apply_policy, judge_nodes
from slurm_rl.plugins.health.script import SOURCES, Output, parse_outputs
from slurm_rl.plugins.health.table import TABLE
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict

OK, BAD = Verdict("ok"), Verdict("bad", "1 GPU, not 8")
SPEC = NodeSpec("nvidia", 1, 3, "w", True, (0.0, 1.0))


def test_table_names_sources_and_policies() -> None:
    assert {check.source for check in TABLE if check.parse} == set(SOURCES)
    assert {check.name for check in TABLE if check.level != "doctor"} == set(CHECKS)


def _gpus(**by_node: Verdict) -> Verdicts:
    return {node: {"gpus": verdict} for node, verdict in by_node.items()}


@pytest.mark.parametrize(
    ("verdicts", "policy", "unfit", "common", "refused", "warned"),
    [
        (_gpus(n1=OK, n2=BAD, n3=OK), {}, {"n2": {"gpus": "1 GPU, not 8"}}, {}, {}, {}),
        (_gpus(n1=BAD), {}, {"n1": {"gpus": "1 GPU, not 8"}}, {}, {}, {}),
        (_gpus(n1=BAD, n2=BAD, n3=OK, n4=OK), {}, {}, {"gpus": "2 of 4 nodes, n1: 1 GPU, not 8"}, {}, {}),
        (_gpus(n1=OK, n2=BAD), {"gpus": "warn"}, {}, {}, {}, {"gpus: 1 GPU, not 8": "n2"}),
        (_gpus(n1=OK, n2=BAD), {"gpus": "refuse"}, {}, {}, {"gpus": "n2: 1 GPU, not 8"}, {}),
    ],
)
def test_apply_policy_decides_by_rule_and_share(
    verdicts: Verdicts,
    policy: dict[str, str],
    unfit: dict[str, object],
    common: dict[str, str],
    refused: dict[str, str],
    warned: dict[str, str],
) -> None:
    assert astuple(apply_policy(verdicts, policy))[:4] == (unfit, common, refused, warned)


def test_apply_policy_groups_unknown_verdicts() -> None:
    verdicts = {f"n{number}": {"ecc": Verdict("unknown", "no ECC")} for number in range(1, 12)}
    found = apply_policy(verdicts, {})
    assert (found.unfit, found.common) == ({}, {})
    assert found.unknown == {"ecc: no ECC": "n1, n2, n3, n4, n5, n6, n7, n8 and 3 more"}


def test_judge_nodes_marks_hanging_sources_bad() -> None:
    output = "n1|files|canary w\nn2|files|canary w\nn1|files|clock 0.5\nn2|nvidia-smi|mask 0\nn1|files|=rc 0\nnoise\n"
    outputs = parse_outputs(output)
    assert outputs["n1"]["files"] == Output(0, ["canary w", "clock 0.5"])
    checks = [check for check in TABLE if check.name in ("files", "gpus") and check.vendor != "amd"]
    found = judge_nodes(outputs, checks, SPEC, ["n1", "n2", "n3"])
    assert list(found) == ["n1", "n2"]
    assert [found["n1"][name].state for name in ("files", "gpus")] == ["bad", "unknown"]
    late = ["files did not answer in time", "nvidia-smi did not answer in time"]
    assert [found["n2"][name].seen for name in ("files", "gpus")] == late
