"""From the answers of all nodes to who is left out."""

from __future__ import annotations

from slurm_rl.config.preflight import CHECKS
from slurm_rl.plugins.health.gate.judge import apply_policy, judge_nodes
from slurm_rl.plugins.health.gate.script import SOURCES, Said, parse_answers
from slurm_rl.plugins.health.gate.table import TABLE
from slurm_rl.plugins.health.gate.verdict import Verdict, Wanted

_OK, _BAD = Verdict("ok"), Verdict("bad", "1 GPU, not 8")
WANTED = Wanted("nvidia", 1, 3, "w", True, (0.0, 1.0))


def test_every_check_has_a_source_and_a_policy() -> None:
    assert {check.source for check in TABLE if check.parse} == set(SOURCES)
    assert {check.name for check in TABLE} <= set(CHECKS)


def test_one_bad_node_of_many_is_left_out_and_half_of_them_are_not() -> None:
    one = apply_policy({"n1": {"gpus": _OK}, "n2": {"gpus": _BAD}, "n3": {"gpus": _OK}}, {})
    assert (one.unfit, one.common) == ({"n2": {"gpus": "1 GPU, not 8"}}, {})
    half = apply_policy({"n1": {"gpus": _BAD}, "n2": {"gpus": _BAD}, "n3": {"gpus": _OK}, "n4": {"gpus": _OK}}, {})
    assert (half.unfit, half.common) == ({}, {"gpus": "2 of 4 nodes, n1: 1 GPU, not 8"})
    alone = apply_policy({"n1": {"gpus": _BAD}}, {})
    assert list(alone.unfit) == ["n1"]


def test_the_policy_of_a_check() -> None:
    verdicts = {"n1": {"gpus": _OK, "xid": _OK}, "n2": {"gpus": _BAD, "xid": Verdict("bad", "Xid 79")}}
    found = apply_policy(verdicts, {"gpus": "warn", "xid": "refuse"})
    assert (found.unfit, found.warned, found.refused) == ({}, {"gpus: 1 GPU, not 8": "n2"}, {"xid": "n2: Xid 79"})


def test_what_is_not_known_is_told_once_and_leaves_nobody_out() -> None:
    verdicts = {f"n{number}": {"ecc": Verdict("unknown", "no ECC")} for number in range(1, 12)}
    found = apply_policy(verdicts, {})
    assert (found.unfit, found.common) == ({}, {})
    assert found.unknown == {"ecc: no ECC": "n1, n2, n3, n4, n5, n6, n7, n8 and 3 more"}


def test_the_driver_decides_whether_an_error_of_the_log_is_over() -> None:
    smi = "<nvidia_smi_log><gpu><gpu_recovery_action>{}</gpu_recovery_action></gpu></nvidia_smi_log>"
    log = Said("uptime 10\n[ 5.0] NVRM: Xid (PCI:0000:01:00): 79, x", 0)
    checks = [check for check in TABLE if check.name in ("recovery", "xid")]
    states = [
        judge_nodes({"n1": {"nvidia-smi": Said(smi.format(word), 0), "kernel": log}}, checks, WANTED, ["n1"])["n1"][
            "xid"
        ]
        for word in ("None", "Reboot", "N/A")
    ]
    assert [verdict.state for verdict in states] == ["warn", "bad", "bad"]


def test_answers_that_are_mixed_and_a_source_that_hangs() -> None:
    output = "n1|files|canary w\nn2|files|canary w\nn1|files|clock 0.5\nn2|nvidia-smi|mask 0\nn1|files|=rc 0\nnoise\n"
    said = parse_answers(output)
    assert said["n1"]["files"] == Said("canary w\nclock 0.5", 0, ["canary w", "clock 0.5"])
    checks = [check for check in TABLE if check.name in ("files", "gpus") and check.vendor != "amd"]
    found = judge_nodes(said, checks, WANTED, ["n1", "n2", "n3"])
    assert list(found) == ["n1", "n2"]
    # n1 was never asked for its GPUs; of n2 the files never ended, and nvidia-smi hangs.
    assert [found["n1"][name].state for name in ("files", "gpus")] == ["bad", "unknown"]
    assert [found["n2"][name].seen for name in ("files", "gpus")] == [
        "files did not answer in time",
        "nvidia-smi did not answer in time",
    ]
