"""Commands built by `wrap` run in real podman with their environment and mounts, and leave nothing behind.

The image contains only busybox and is built here, so no registry is needed. Storage is in a temporary folder; the
machine's own containers are not touched.
"""

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_rl.plan.container import ContainerPlan, Mount, Wrapped, wrap
from tests.podman_kit import install_missing, make_busybox_root, podman_environment

IMAGE = "localhost/slurm-rl-test:1"
PACKAGES = {"podman": "podman", "runc": "runc", "busybox": "busybox-static"}


@dataclass(frozen=True)
class Podman:
    """podman with private storage."""

    env: Mapping[str, str]

    def wrap(
        self, script: str, name: str, env: Mapping[str, str] | None = None, mounts: Sequence[Mount] = ()
    ) -> Wrapped:
        container = ContainerPlan("podman", IMAGE, (), "/tmp", None, True, ())
        argv = ["/bin/sh", "-c", script]
        return wrap(argv, env or {}, mounts, container, accelerator="cpu", name=name, inherited=["A_SECRET"])

    def start(self, wrapped: Wrapped) -> subprocess.Popen[str]:
        env = {**self.env, **wrapped.env, "A_SECRET": "hunter2"}
        return subprocess.Popen(wrapped.argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, wrapped: Wrapped) -> tuple[int, str]:
        with self.start(wrapped) as process:
            output, _ = process.communicate(timeout=180)
            return process.returncode, output

    def names(self) -> list[str]:
        listing = ["podman", "ps", "--all", "--format={{.Names}}"]
        return subprocess.run(listing, env=self.env, capture_output=True, text=True, check=True).stdout.split()

    def end(self, wrapped: Wrapped) -> None:
        subprocess.run(wrapped.cleanup_argv, env=self.env, check=True, capture_output=True, timeout=180)


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    install_missing(PACKAGES)
    folder = tmp_path_factory.mktemp("podman")
    env = podman_environment(folder)
    make_busybox_root(folder / "root.tar")
    podman = Podman(env)
    for argv in (["podman", "import", str(folder / "root.tar"), IMAGE], podman.wrap("true", "probe").argv):
        result = subprocess.run(argv, env=env, capture_output=True, text=True)
        if result.returncode:
            pytest.skip(f"podman does not run here: {result.stderr.strip().splitlines()[-1:]}")
    yield podman
    subprocess.run(["podman", "rm", "--all", "--force", "--time=0"], env=env, capture_output=True, timeout=180)


def _wait_until_running(podman: Podman, name: str) -> None:
    """podman drops a signal sent after the command starts and before podman records it as running."""
    inspect = ["podman", "inspect", "--format={{.State.Running}}", name]
    deadline = time.monotonic() + 120
    while subprocess.run(inspect, env=podman.env, capture_output=True, text=True).stdout != "true\n":
        assert time.monotonic() < deadline, f"{name} does not run"
        time.sleep(0.05)


def test_environment_by_name_arrives_and_rest_stays_out(podman: Podman) -> None:
    value = "two words, 'quotes' $(id)\nand a line"
    wrapped = podman.wrap('printf "%s|%s|%s|%s" "$OURS" "$A_SECRET" "$SHELL_ONLY" "$PWD"', "t-env", {"OURS": value})
    podman_with_more = Podman({**podman.env, "SHELL_ONLY": "x"})
    assert podman_with_more.run(wrapped) == (0, f"{value}|hunter2||/tmp")


def test_mounts_with_spaces_commas_colons_and_quotes(podman: Podman, tmp_path: Path) -> None:
    source = tmp_path / 'a b,c:d"e'
    source.mkdir()
    (source / "in").write_text("hello")
    mounts = [Mount(str(source), "/x y,z"), Mount(str(source), "/ro", read_only=True)]
    script = 'cat "/x y,z/in"; echo back > "/x y,z/out"; touch /ro/no'
    code, output = podman.run(podman.wrap(script, "t-mounts", mounts=mounts))
    assert code == 1 and output.startswith("hello") and "Read-only file system" in output
    assert (source / "out").read_text() == "back\n"


def test_exit_code_is_returned_and_container_removed(podman: Podman) -> None:
    assert podman.run(podman.wrap("exit 7", "t-exit"))[0] == 7
    assert "t-exit" not in podman.names()


def test_signal_reaches_command(podman: Podman) -> None:
    script = "trap 'echo saved; exit 3' USR2; echo ready; while :; do sleep 0.1; done"
    with podman.start(podman.wrap(script, "t-signal")) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        _wait_until_running(podman, "t-signal")
        process.send_signal(signal.SIGUSR2)
        assert process.communicate(timeout=120)[0] == "saved\n"
    assert process.returncode == 3
    assert "t-signal" not in podman.names()


def test_leftover_container_is_ended_by_name_only(podman: Podman) -> None:
    script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    ours, neighbour = podman.wrap(script, "t-ours"), podman.wrap(script, "t-ours-2")
    clients = [podman.start(ours), podman.start(neighbour)]
    try:
        assert [client.stdout and client.stdout.readline() for client in clients] == ["ready\n"] * 2
        clients[0].kill()
        clients[0].wait()
        assert "t-ours" in podman.names()
        started = time.monotonic()
        podman.end(ours)
        assert podman.names() == ["t-ours-2"] and time.monotonic() - started < 100
        podman.end(ours)  # idempotent
    finally:
        podman.end(neighbour)
        for client in clients:
            client.communicate(timeout=120)
    assert podman.names() == []
