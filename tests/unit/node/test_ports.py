import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.errors import BringUpError
from slurm_rl.node import ports
from slurm_rl.node.ports import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    PortPlan,
    check_dashboard_port,
    choose_ports,
    derive_port_block,
    find_busy,
)

# Differs between two test runs on one machine.
JOB = str(os.getpid())


@contextmanager
def listening(port: int, host: str = "127.0.0.1") -> Iterator[None]:
    with socket.socket() as server:
        server.bind((host, port))
        server.listen()
        yield


@contextmanager
def chosen(job_key: str, attempt: int = 0) -> Iterator[PortPlan]:
    plan = choose_ports(job_key, attempt)
    try:
        yield plan
    finally:
        ports._guards.pop(plan.guard).close()


@given(
    job_key=st.one_of(st.integers(0, 2**32).map(str), st.text(max_size=30)),
    attempt=st.integers(0, 1000),
    candidate=st.integers(0, 100),
)
def test_port_block_is_in_range_and_distinct(job_key: str, attempt: int, candidate: int) -> None:
    plan = derive_port_block(job_key, attempt, candidate)
    numbers = plan.all_ports()
    assert len(numbers) == len(set(numbers))
    assert min(numbers) > 10_000 and max(numbers) < 32_768
    assert max(numbers) - min(numbers) < BLOCK_SIZE
    assert plan.worker_max - plan.worker_min + 1 >= 200
    assert plan == derive_port_block(job_key, attempt, candidate)


@given(job_key=st.text(min_size=1, max_size=20), attempt=st.integers(0, 50))
def test_port_candidates_visit_disjoint_blocks(job_key: str, attempt: int) -> None:
    blocks = [derive_port_block(job_key, attempt, candidate) for candidate in range(NUM_BLOCKS)]
    numbers = [port for block in blocks for port in block.all_ports()]
    assert len({block.gcs for block in blocks}) == NUM_BLOCKS and len(set(numbers)) == len(numbers)


@given(job=st.integers(1, 10**9), step=st.integers(1, NUM_BLOCKS - 1))
def test_port_block_differs_for_neighbouring_jobs(job: int, step: int) -> None:
    assert derive_port_block(str(job), 0, 0).gcs != derive_port_block(str(job + step), 0, 0).gcs
    assert derive_port_block(str(job), 0, 0).gcs != derive_port_block(str(job), 1, 0).gcs


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_find_busy_sees_listener_on_any_address(address: str) -> None:
    with socket.socket() as server:
        server.bind((address, 0))
        server.listen()
        port = server.getsockname()[1]
        assert find_busy([port]) == [port]
    assert find_busy([port]) == []


@pytest.mark.parametrize("name", ["gcs", "rendezvous", "spare_max", "worker_min", "worker_max"])
def test_choose_ports_skips_block_with_busy_port(name: str) -> None:
    with chosen(JOB) as plan:
        pass
    with listening(getattr(plan, name)), chosen(JOB) as moved:
        assert moved.candidate > plan.candidate
        assert not set(moved.all_ports()) & set(plan.all_ports())


def test_choose_ports_separates_jobs_with_one_first_choice() -> None:
    other = str(int(JOB) + NUM_BLOCKS)
    with chosen(JOB) as mine, chosen(other) as theirs:
        assert not set(mine.all_ports()) & set(theirs.all_ports())


def test_choose_ports_frees_block_of_killed_process() -> None:
    script = f"from slurm_rl.node.ports import *; print(choose_ports({JOB!r}, 3).guard, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        guard = int(owner.stdout.readline())
        assert find_busy([guard]) == [guard]
        owner.kill()
    assert find_busy([guard]) == []


def test_choose_ports_lists_busy_ports_in_error() -> None:
    # Two blocks without listeners of another test run.
    pairs = ((n, [derive_port_block(JOB, n, candidate) for candidate in range(2)]) for n in range(5, 100))
    attempt, plans = next((n, ab) for n, ab in pairs if not find_busy([*ab[0].all_ports(), *ab[1].all_ports()]))
    with listening(plans[0].dashboard), listening(plans[1].guard), pytest.raises(BringUpError) as caught:
        choose_ports(JOB, attempt, tries=2)
    text = str(caught.value)
    assert f"{plans[0].dashboard} busy" in text and "held by another job" in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_check_dashboard_port_names_taken_port() -> None:
    check_dashboard_port(None, "n0")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(BringUpError) as caught:
        check_dashboard_port(taken.getsockname()[1], "n0")
    assert "ray.dashboard_port must be free on the head node; got" in str(caught.value)
