"""Run a command with the Slurm of another Debian suite, unpacked into a folder; nothing is built or installed.

    python -m tests.slurm.cluster on trixie python -m pytest -m "not slow" tests/slurm/test_commands.py

The command and all daemons and nodes of its clusters run in a mount namespace with the suite as root. Network,
processes, cgroups, /run, /tmp and the checkout are the machine's, so clusters of several suites can run concurrently. A
suite is unpacked once per machine (about 12 s); delete its folder to update it.
"""

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.slurm.cluster.packages import ACCOUNTING_PROGRAMS, PROGRAMS, ClusterError, is_possible

HOME = Path("/var/tmp/slurm-rl-suites")
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Debian's essential packages, those of the cluster, and programs that the tests call.
PACKAGES = (
    "?essential",
    *sorted({*PROGRAMS.values(), *ACCOUNTING_PROGRAMS.values()}),
    *("git", "hostname", "libstdc++6", "mount", "openssh-client", "procps", "python3"),
)
# Files copied from this machine's /etc for user and host names.
NAMES = ("passwd", "group", "shadow", "gshadow", "nsswitch.conf", "resolv.conf", "hosts", "hostname", "localtime")


def is_suite_possible(suite: str) -> str | None:
    """Return None if this machine can run the suite's Slurm, else the reason in one line. Changes nothing."""
    if reason := is_possible():
        return reason
    if is_made(suite):
        return None
    if not KEYS.exists() or shutil.which("apt-get") is None:
        return "the packages of another suite are had by Debian's apt-get and its keys, and this is no Debian"
    return None if find_mirror() else "apt on this machine knows no mirror of Debian"


def run_in(root: Path, argv: Sequence[str]) -> int:
    """Run a command with `root` (from `ensure_suite`) as /; return its exit code."""
    enter = ["unshare", "--mount", "--propagation", "private", "sh", str(Path(__file__).with_name("suite.sh"))]
    return subprocess.run([*enter, str(root), *argv]).returncode


def ensure_suite(suite: str) -> Path:
    """Return the root folder of this suite; create it if missing.

    Raises:
        ClusterError: its packages cannot be downloaded.
    """
    if re.fullmatch(r"[a-z]+", suite) is None:
        raise ClusterError(f"a suite is one of Debian's names, such as trixie or sid; got {suite!r}")
    HOME.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time():
        if not is_made(suite):
            # Renamed when complete, so that an interrupted download leaves no suite.
            part = HOME / f"{suite}.part"
            subprocess.run(["rm", "-rf", "--one-file-system", str(part)], check=True)
            _make(suite, part)
            part.rename(HOME / suite)
    return HOME / suite


def is_made(suite: str) -> bool:
    return (HOME / suite).is_dir()


def find_mirror() -> str | None:
    """Return the Debian mirror configured in this machine's apt."""
    argv = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
    rows = [line.split() for line in subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()]
    mirrors = [row[0] for row in rows if len(row) == 2 and row[0].rstrip("/").endswith("/debian")]
    return next(iter(mirrors), None)


def _make(suite: str, root: Path) -> None:
    """Unpack the packages that apt would install on an empty machine, without maintainer scripts."""
    apt = root / ".apt"
    (root / ".old").mkdir(parents=True)
    archives = _download(suite, apt)
    # base-files first: it holds links such as /bin -> usr/bin through which the others are unpacked.
    for archive in sorted(archives, key=lambda path: (not path.name.startswith("base-files_"), path.name)):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as content:
            subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", str(root)], stdin=content.stdout, check=True)
    shutil.rmtree(apt)
    # Replaces the maintainer scripts: alternatives, users and names.
    for program in (root / "usr").glob("*bin/*-wlm"):
        program.with_name(program.name.removesuffix("-wlm")).symlink_to(program.name)
    (root / "usr/bin/awk").symlink_to("mawk")
    for name in NAMES:
        if (Path("/etc") / name).exists():
            shutil.copy(Path("/etc") / name, root / "etc" / name)
    (root / "usr/local").mkdir(exist_ok=True)


def _download(suite: str, apt: Path) -> list[Path]:
    """Download the packages and their dependencies with private apt lists and cache."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources").write_text(f"deb [signed-by={KEYS}] {find_mirror()} {suite} main\n")
    options = {
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": apt / "sources",
        "Dir::Etc::sourceparts": "-",
        "APT::Install-Recommends": "false",
        # apt's download user cannot read this folder.
        "APT::Sandbox::User": "root",
    }
    argv = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    for words in (["update"], ["--download-only", "--yes", "install", *PACKAGES]):
        done = subprocess.run([*argv, *words], env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True)
        if done.returncode:
            raise ClusterError(f"apt-get {words[0]} of {suite} failed: {done.stderr.strip()[-500:]}")
    return list((apt / "cache/archives").glob("*.deb"))


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    with (HOME / "lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield
