"""podman and mksquashfs on a busybox: from a root file system to a .sqsh in enroot's layout."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.podman_kit import install_missing, make_busybox_root, podman_environment

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "podman": "podman",
    "runc": "runc",
    "busybox": "busybox-static",
    "unsquashfs": "squashfs-tools",
}
BASE, IMAGE = "localhost/busybox:1", "localhost/with-config:1"


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """podman environment with busybox in its store, and an image on top with an entry point and command."""
    install_missing(PACKAGES)
    folder = tmp_path_factory.mktemp("store")
    env = podman_environment(folder) | {"PYTHONPATH": str(ROOT)}
    make_busybox_root(folder / "root.tar")
    recipe = f'FROM {BASE}\nENV GREETING="hello you"\nWORKDIR /work\nENTRYPOINT ["/bin/env"]\nCMD ["cat"]\n'
    (folder / "Containerfile").write_text(recipe)
    for argv in (
        ["podman", "import", str(folder / "root.tar"), BASE],
        ["podman", "build", f"--tag={IMAGE}", f"--file={folder}/Containerfile", str(folder)],
    ):
        done = subprocess.run(argv, env=env, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"podman does not run here: {done.stderr.strip().splitlines()[-1:]}")
    return env


def image(env: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "slurm_rl", "image", *words]
    return subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=300)


def for_pyxis(path: Path) -> list[str]:
    return ["container.runtime=pyxis", f"container.image={path}"]


def test_sqsh_has_enroot_layout_and_is_idempotent(env: Mapping[str, str], tmp_path: Path) -> None:
    path = tmp_path / "rl.sqsh"
    words = ["import", "--engine=podman", f"--from={IMAGE}", *for_pyxis(path)]
    done = image(env, *words)
    assert done.returncode == 0, done.stderr
    assert "is ready" in done.stderr
    listing = subprocess.run(["unsquashfs", "-ll", str(path)], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in listing.splitlines() if "squashfs-root" in line]
    names = {line[5].removeprefix("squashfs-root"): line[:2] for line in lines}
    assert {"/etc/rc", "/etc/environment", "/etc/rc.local", "/dev", "/proc", "/sys", "/bin/busybox"} <= set(names)
    assert not [name for name in names if name.startswith("/dev/")]
    assert {mode[0] for mode, _ in names.values()} <= {"d", "-", "l"}
    assert {owner for _, owner in names.values()} == {"root/root"} and names[""][0] == "drwxr-xr-x"
    read = ["unsquashfs", "-cat", str(path)]
    text = subprocess.run([*read, "etc/environment", "etc/rc"], capture_output=True, text=True, check=True).stdout
    assert "GREETING=hello you\n" in text and "cd /work" in text and 'exec /bin/env "$@"' in text
    assert "exec /bin/env cat" in text
    assert json.loads((tmp_path / "rl.sqsh.json").read_text())["size"] == path.stat().st_size
    before = path.stat().st_mtime_ns
    again = image(env, *words)
    assert again.returncode == 0 and "is up to date" in again.stderr and path.stat().st_mtime_ns == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rl.sqsh", "rl.sqsh.json"]
    listing = ["podman", "ps", "--all", "--quiet"]
    assert subprocess.run(listing, env=dict(env), capture_output=True, text=True, check=True).stdout == ""


# Stand-ins for programs that the CPU image recipe calls; pip logs its requirements.
STAND_INS = {
    "apt-get": "true",
    "useradd": "echo runner:x:1000:1000::/:/bin/sh >> /etc/passwd",
    "python3": '[ "$1" = -m ] || exit 1\n{ echo "pip $*"; cat; } >> /asked',
}


def test_cpu_recipe_builds_offline_and_is_idempotent(env: Mapping[str, str], tmp_path: Path) -> None:
    """Downloads are stubbed; tests/slurm/test_image_cpu.py builds and uses the complete image."""
    path, base = tmp_path / "cpu.sqsh", "localhost/stand-ins:1"
    make_busybox_root(tmp_path / "root.tar", STAND_INS)
    subprocess.run(["podman", "import", str(tmp_path / "root.tar"), base], env=dict(env), check=True)
    words = ["build", "--engine=podman", f"--base={base}", "--engine-arg=--network=host", *for_pyxis(path)]
    done = image(env, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    manifest = json.loads((tmp_path / "cpu.sqsh.json").read_text())
    assert manifest["from"] == "cpu"
    read = ["unsquashfs", "-cat", str(path), "asked"]
    requirements = subprocess.run(read, capture_output=True, text=True, check=True).stdout.splitlines()
    calls = [line for line in requirements if line.startswith("pip ")]
    # Each locked package is requested once, by hash: torch from its index, source distributions last.
    assert sorted(set(requirements) - set(calls)) == sorted((ROOT / "constraints.txt").read_text().splitlines())
    assert all("--no-deps --require-hashes" in call for call in calls) and len(requirements) == len(set(requirements))
    assert requirements[1].startswith("torch==")
    assert [("--index-url" in call, "--no-build-isolation" in call) for call in calls] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    again = image(env, *words)
    assert again.returncode == 0 and "is up to date" in again.stderr and "podman build" not in again.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_image_write_reports_full_disk(env: Mapping[str, str], small_disk: Path) -> None:
    done = image(env, "import", f"--from={IMAGE}", *for_pyxis(small_disk / "rl.sqsh"))
    assert done.returncode == 2, done.stderr
    assert "an image needs room on the disk" in done.stderr and "Traceback" not in done.stderr
    assert list(small_disk.iterdir()) == []


def test_image_unpack_reports_full_disk(env: Mapping[str, str], small_disk: Path, tmp_path: Path) -> None:
    done = image({**env, "TMPDIR": str(small_disk)}, "import", f"--from={IMAGE}", *for_pyxis(tmp_path / "rl.sqsh"))
    assert done.returncode == 2, done.stderr
    assert "an image needs room on the disk" in done.stderr and "TMPDIR" in done.stderr
    assert list(small_disk.iterdir()) == [] and not list(tmp_path.glob("*.sqsh*"))


def test_engine_names_missing_image(env: Mapping[str, str], tmp_path: Path) -> None:
    done = image(env, "import", "--engine=podman", "--from=localhost/nothing:1", *for_pyxis(tmp_path / "rl.sqsh"))
    assert done.returncode == 2, done.stderr
    assert "podman pull must succeed" in done.stderr
    assert list(tmp_path.iterdir()) == []
