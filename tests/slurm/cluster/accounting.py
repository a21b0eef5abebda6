"""slurmdbd with a new MariaDB for each cluster: an old database would remember old job ids."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.slurm.cluster.daemons import Daemons
from tests.slurm.cluster.packages import ClusterError
from tests.slurm.cluster.slots import Slot

ACCOUNT = "lab"


def start_accounting(root: Path, slot: Slot, daemons: Daemons, env: Mapping[str, str]) -> None:
    """Start MariaDB and slurmdbd; add this cluster, one account, and root as its user."""
    _start_database(root, daemons)
    config = root / "slurmdbd.conf"
    config.touch(mode=0o600)
    config.write_text(_render(root, slot))
    start_slurmdbd(root, daemons, env)
    for entity in (
        ["cluster", f"test{slot.letter}"],
        ["account", ACCOUNT],
        ["user", "root", f"account={ACCOUNT}", f"defaultaccount={ACCOUNT}"],
    ):
        if not _sacctmgr(env, "-i", "add", *entity):
            raise ClusterError(f"sacctmgr could not add {entity}")


def start_slurmdbd(root: Path, daemons: Daemons, env: Mapping[str, str]) -> None:
    # StorageHost=localhost means MariaDB's default socket; this variable selects ours.
    socket_env = {**env, "MYSQL_UNIX_PORT": str(root / "db.sock")}
    log = root / "log" / "slurmdbd.out"
    daemons.start("slurmdbd", ["slurmdbd", "-D"], log=log, env=socket_env)
    daemons.wait_ready("slurmdbd", lambda: _sacctmgr(env, "list", "cluster"), log=log)


def _start_database(root: Path, daemons: Daemons) -> None:
    data, socket = root / "db", root / "db.sock"
    install = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db"]
    done = subprocess.run([*install, "--auth-root-authentication-method=socket"], capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"mariadb-install-db failed: {(done.stdout + done.stderr)[-500:]}")
    server = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={socket}"]
    tuning = ["--skip-networking", "--innodb-buffer-pool-size=32M", "--innodb-lock-wait-timeout=900"]
    # This data need not survive a crash.
    fast = ["--innodb-flush-log-at-trx-commit=0", "--skip-log-bin"]
    log = root / "log" / "mariadbd.out"
    daemons.start("mariadbd", [*server, *tuning, *fast, f"--pid-file={data}/pid"], log=log)
    daemons.wait_ready("mariadbd", lambda: _sql(socket, "select 1"), log=log)
    for statement in (
        "create database slurm_acct_db",
        "create user slurm@localhost identified by 'lab'",
        "grant all on slurm_acct_db.* to slurm@localhost",
    ):
        if not _sql(socket, statement):
            raise ClusterError(f"MariaDB refused: {statement}")


def _render(root: Path, slot: Slot) -> str:
    keys = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={root}/munge/socket",
        "DbdHost": "localhost",
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(slot.accounting_port),
        "SlurmUser": "root",
        "PidFile": f"{root}/state/slurmdbd.pid",
        "LogFile": f"{root}/log/slurmdbd.log",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "slurm",
        "StoragePass": "lab",
        "StorageLoc": "slurm_acct_db",
    }
    return "".join(f"{key}={value}\n" for key, value in keys.items())


def _sql(socket: Path, statement: str) -> bool:
    argv = ["mariadb", "--no-defaults", f"--socket={socket}", "--user=root", "-e", statement]
    return subprocess.run(argv, capture_output=True, env={**os.environ, "HOME": "/nonexistent"}).returncode == 0


def _sacctmgr(env: Mapping[str, str], *args: str) -> bool:
    return subprocess.run(["sacctmgr", "-n", "-Q", *args], capture_output=True, env=dict(env)).returncode == 0
