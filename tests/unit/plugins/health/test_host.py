import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.plugins.health import host
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict

NOW = 1740327900.0
SPEC = NodeSpec("cpu", 0, 4, "w", needs_python=True, checked_at=(NOW, NOW + 1), shm_bytes=1e7)
_LOCKED = "Max locked memory         65536                {}            bytes\nlimits end"


def _files(**changed: str) -> str:
    values = {"canary": "w", "tmp_writable": "yes", "tmp_kb": "99000000 50000000", "shm_writable": "yes"}
    values |= {"shm_kb": "64000 60000", "clock": str(NOW)} | changed
    return "\n".join(f"{name} {value}" for name, value in values.items() if value)


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, "ok"),  # a small /dev/shm is a setting
        ({"canary": "other"}, "bad"),
        ({"canary": ""}, "bad"),
        ({"tmp_writable": ""}, "bad"),
        ({"shm_writable": ""}, "bad"),
        ({"shm_kb": "12000000 900000"}, "bad"),
        ({"shm_kb": "9000 9000"}, "bad"),  # less than the object store
        ({"shm_kb": "64000000 5000000"}, "warn"),
        ({"clock": str(NOW - 60)}, "warn"),
        ({"clock": "soon"}, "unknown"),
        ({"shm_kb": "-"}, "unknown"),
    ],
)
def test_files_judges_canary_space_and_clock(changed: dict[str, str], state: str) -> None:
    assert host.check_files(_files(**changed), 0, SPEC).state == state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (f"python ok\n{_LOCKED.format(64)}", "ok"),
        (f"python ok\nrdma 2\n{_LOCKED.format(64)}", "warn"),
        (f"python ok\nrdma 2\n{_LOCKED.format('unlimited')}", "ok"),
        ("python ok\nMax open files    512    1024    files\nlimits end", "warn"),
        ("python ok\nMax cpu time    3    unlimited    seconds\nlimits end", "ok"),
        ("python ok\nMax cpu time    3    600    seconds\nlimits end", "warn"),
        ("python ok, unlocked: no locks\nlimits end", "warn"),
        ("python exit status 127\nlimits end", "bad"),
        ("code missing\npython ok\nlimits end", "bad"),
        ("image missing\npython ok\nlimits end", "bad"),
        ("python ok", "unknown"),
    ],
)
def test_start_judges_code_python_and_limits(text: str, state: str) -> None:
    assert host.check_start(text, 0, SPEC).state == state


def tries(*seconds: float, place: str = "run_dir", status: int = 0) -> str:
    return "\n".join(f"write {place} {status} {NOW:.6f} {NOW + one:.6f}" for one in seconds)


def read(text: str) -> Verdict:
    return host.check_disks(text, 0, SPEC)


def test_disks_keeps_best_try_of_each_place() -> None:
    found = read(f"{tries(0.1)}\n{tries(0.9, 0.2, place='tmp_root')}")
    assert (found.state, dict(found.facts)) == ("ok", {"run_dir": "83.89", "tmp_root": "41.94"})


@pytest.mark.parametrize(
    ("text", "state", "seen"),
    [
        (tries(4.0, 2.0, 8.0), "warn", "writes to run_dir at 4.19 MB/s"),
        (tries(10.0, 10.0, status=124), "warn", "writes to run_dir at 0.839 MB/s"),
        (tries(11.0, status=137), "warn", "writes to run_dir at 0.763 MB/s"),  # blocked in the kernel
        (tries(1.0, status=137), "unknown", "the speed of run_dir cannot be measured"),
        (
            f"{tries(0.1, status=1)}\n{tries(0.1, place='tmp_root')}",
            "unknown",
            "the speed of run_dir cannot be measured",
        ),
        (tries(0.0), "unknown", "the speed of run_dir cannot be measured"),
        ("write run_dir 0 1740327900.N 1740327901.N", "unknown", "no disk was measured"),
        ("sh: 1: dd: not found", "unknown", "no disk was measured"),
    ],
)
def test_disks_warns_of_slow_ones(text: str, state: str, seen: str) -> None:
    found = read(text)
    assert (found.state, found.seen) == (state, seen)


@pytest.mark.parametrize(
    ("seconds", "states"),
    [
        ((0.05, 0.05, 0.05, 8.0), ["ok", "ok", "ok", "bad"]),
        ((4.0, 5.0, 6.0, 7.0), ["warn"] * 4),  # a shared disk, slow for all
        ((0.001, 0.001, 0.5), ["ok"] * 3),  # fast enough
        ((0.001, 8.0), ["ok", "warn"]),  # two nodes are not compared
    ],
)
def test_disks_are_compared_between_nodes(seconds: tuple[float, ...], states: list[str]) -> None:
    found = host.compare_disks({f"n{index}": read(tries(one)) for index, one in enumerate(seconds)})
    assert [verdict.state for verdict in found.values()] == states
    if states[-1] == "bad":
        assert found["n3"].seen == "writes to run_dir at 1.05 MB/s, others 168"


@given(st.text(max_size=200))
def test_disks_of_garbage_are_never_bad(text: str) -> None:
    found = host.compare_disks({"n1": read(text), "n2": read(tries(0.1)), "n3": read(tries(0.1))})
    assert found["n1"].state != "bad"
