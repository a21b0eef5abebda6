"""podman with separate storage, so that the machine's containers and images stay untouched."""

import atexit
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

APPLETS = ("sh", "env", "cat", "touch", "sleep", "true", "grep", "rm")


def install_missing(packages: Mapping[str, str]) -> None:
    """Install missing programs (program -> Debian package); skip the test, with the reason, if that fails."""
    missing = sorted({package for program, package in packages.items() if shutil.which(program) is None})
    if not missing:
        return
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"needs {', '.join(missing)}, and only root on Debian can install them here")
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(install, env=env, capture_output=True).returncode:
        pytest.skip(f"apt-get cannot install {', '.join(missing)} here")


def podman_environment(folder: Path, *, driver: str = "vfs", graph: str | None = None) -> dict[str, str]:
    """Return variables that point podman to storage in `folder`.

    Args:
        driver: vfs works everywhere and copies all layers; overlay needs permission to mount.
        graph: folder of the images; each node needs its own if nodes share `folder`.
    """
    # A sandbox may not raise limits to podman's defaults.
    limits = 'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]'
    (folder / "containers.conf").write_text(f'[containers]\n{limits}\n[engine]\nruntime = "runc"\n')
    # Socket paths above 107 characters fail, and every container then waits 20 s.
    running = tempfile.mkdtemp(prefix="podman-") if graph is None else f"{graph}-run"
    if graph is None:
        atexit.register(shutil.rmtree, running, ignore_errors=True)
    graph = graph or f"{folder}/graph"
    storage = f'[storage]\ndriver = "{driver}"\ngraphroot = "{graph}"\nrunroot = "{running}"\n'
    (folder / "storage.conf").write_text(storage)
    return {
        **os.environ,
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }


def make_busybox_root(path: Path, scripts: Mapping[str, str] | None = None) -> None:
    """Write a tar of a root file system with only busybox.

    Args:
        scripts: name in /bin -> shell script.
    """
    busybox = shutil.which("busybox")
    assert busybox is not None
    with tarfile.open(path, "w") as tar:
        tar.add(busybox, "bin/busybox")
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for name, script in (scripts or {}).items():
            entry, content = tarfile.TarInfo(f"bin/{name}"), f"#!/bin/sh\n{script}\n".encode()
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
        for folder in ("tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)


def pip_arguments(folder: Path) -> list[str]:
    """Return flags of `image build` that give pip in the build the settings and folders of pip here."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    settings = {
        key.rpartition(".")[2]: value.strip("'")
        for key, _, value in (line.partition("=") for line in listing.stdout.splitlines())
    }
    # Skip compilation: it takes a minute and doubles the number of files.
    lines = ["[global]", *(f"{key} = {value}" for key, value in settings.items()), "[install]", "compile = false"]
    (folder / "pip.conf").write_text("\n".join([*lines, ""]))
    shared = {folder / "pip.conf": Path("/etc/pip.conf")}
    for word in " ".join(settings.values()).split():
        # Pages of a local index link to sibling folders.
        path = Path(word.removeprefix("file://")).parent if word.startswith("file://") else Path(word)
        if path.is_absolute() and path.exists():
            shared[path] = path
    flags = [f"--engine-arg=--volume={source}:{target}:ro" for source, target in shared.items()]
    # A custom index includes torch.
    own_index = {"find-links", "index-url", "extra-index-url"} & set(settings)
    return [*flags, *(["--build-arg=TORCH_INDEX="] if own_index else [])]


def make_debian_root(path: Path) -> None:
    """Write a tar of a small Debian with Python and pip from its mirror; skip the test without a mirror."""
    install_missing({"debootstrap": "debootstrap"})
    root = path.with_suffix("")
    argv = ["debootstrap", "--variant=minbase", "--include=ca-certificates,python3-pip", "bookworm", str(root)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"debootstrap does not work here: {(done.stdout + done.stderr).strip().splitlines()[-1:]}")
    subprocess.run(["tar", f"--directory={root}", "--exclude=./dev/*", f"--file={path}", "--create", "."], check=True)
    shutil.rmtree(root)
