from pathlib import Path

from slurm_rl.launch.slurm.partitions import parse_boot_times, parse_nodes


def test_parse_nodes_reads_states_and_boot_times() -> None:
    nodes = parse_nodes(
        "n1|idle|4|1|gpu:2|a\nn2|mixed*|4|1|gpu:2|a\nn3|drained|4|1|gpu:2|a\nn4|allocated|4|1|(null)|b\n"
    )
    assert [name for name, node in nodes.items() if node.is_in_service] == ["n1", "n4"]
    assert (nodes["n4"].size, nodes["n4"].features) == ("4|1|(null)", "b")
    shown = (
        "NodeName=n1 Arch=x\n   BootTime=2026-11-22T08:57:21 SlurmdStartTime=x\n\nNodeName=n2 Arch=x\n   State=DOWN\n"
    )
    shown += "   BootTime=None\n\nNodeName=n3 x\n   BootTime=2026-11-22T08:57:22\n"
    found = parse_boot_times(shown)
    assert sorted(found) == ["n1", "n3"]
    assert found["n3"] - found["n1"] == 1.0
    sample = Path(__file__).parents[3] / "samples" / "scontrol-show-node.h100-23.11.txt"
    assert parse_boot_times(sample.read_text(encoding="utf-8")) == {}
