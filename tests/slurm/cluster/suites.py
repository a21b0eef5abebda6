"""Another Slurm than this machine's: that of another Debian suite, unpacked beside it. Nothing is built or installed.

    python -m tests.slurm.cluster on trixie python -m pytest -m "not slow" tests/slurm/test_commands.py

The command, and with it every daemon and node of its clusters, runs in a mount namespace whose / is the suite's.
Network, processes, cgroups, /run, /tmp and the checkout are the machine's, so clusters of two suites stand beside
each other. A suite is made once a machine, in some 12 s; remove its folder to have a newer one.
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
# What is essential to a Debian, what the cluster needs, and what the tests themselves call.
PACKAGES = (
    "?essential",
    *sorted({*PROGRAMS.values(), *ACCOUNTING_PROGRAMS.values()}),
    *("git", "hostname", "libstdc++6", "mount", "openssh-client", "procps", "python3"),
)
# Files of /etc by which users and names are found: this machine's.
NAMES = ("passwd", "group", "shadow", "gshadow", "nsswitch.conf", "resolv.conf", "hosts", "hostname", "localtime")


def is_suite_possible(suite: str) -> str | None:
    """None when this suite's Slurm can be had here, else the reason in one line. Changes nothing."""
    if reason := is_possible():
        return reason
    if is_made(suite):
        return None
    if not KEYS.exists() or shutil.which("apt-get") is None:
        return "the packages of another suite are had by Debian's apt-get and its keys, and this is no Debian"
    return None if find_mirror() else "apt on this machine knows no mirror of Debian"


def run_in(root: Path, argv: Sequence[str]) -> int:
    """Run a command where / is that of `ensure_suite`; its exit code."""
    enter = ["unshare", "--mount", "--propagation", "private", "sh", str(Path(__file__).with_name("suite.sh"))]
    return subprocess.run([*enter, str(root), *argv]).returncode


def ensure_suite(suite: str) -> Path:
    """The folder that is / for this suite, made when it is not there yet.

    Raises:
        ClusterError: its packages cannot be had.
    """
    if re.fullmatch(r"[a-z]+", suite) is None:
        raise ClusterError(f"a suite is one of Debian's names, such as trixie or sid; got {suite!r}")
    HOME.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time():
        if not is_made(suite):
            # Beside, and renamed when it is whole.
            part = HOME / f"{suite}.part"
            subprocess.run(["rm", "-rf", "--one-file-system", str(part)], check=True)
            _make(suite, part)
            part.rename(HOME / suite)
    return HOME / suite


def is_made(suite: str) -> bool:
    return (HOME / suite).is_dir()


def find_mirror() -> str | None:
    """The mirror that this machine's own apt takes Debian from."""
    argv = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
    rows = [line.split() for line in subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()]
    mirrors = [row[0] for row in rows if len(row) == 2 and row[0].rstrip("/").endswith("/debian")]
    return next(iter(mirrors), None)


def _make(suite: str, root: Path) -> None:
    """Unpack what apt would install on an empty machine; no maintainer script runs."""
    apt = root / ".apt"
    (root / ".old").mkdir(parents=True)
    archives = _download(suite, apt)
    # base-files first: it holds the links /bin -> usr/bin and so on that the others are unpacked through.
    for archive in sorted(archives, key=lambda path: (not path.name.startswith("base-files_"), path.name)):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as content:
            subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", str(root)], stdin=content.stdout, check=True)
    shutil.rmtree(apt)
    # What maintainer scripts would have done: alternatives, and /etc's users and names.
    for program in (root / "usr").glob("*bin/*-wlm"):
        program.with_name(program.name.removesuffix("-wlm")).symlink_to(program.name)
    (root / "usr/bin/awk").symlink_to("mawk")
    for name in NAMES:
        if (Path("/etc") / name).exists():
            shutil.copy(Path("/etc") / name, root / "etc" / name)
    (root / "usr/local").mkdir(exist_ok=True)


def _download(suite: str, apt: Path) -> list[Path]:
    """The packages and all they depend on, by an apt with lists and a cache of its own."""
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
        # Its own user for downloads may not enter here.
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
