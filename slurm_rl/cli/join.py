"""`join`: one run over machines without a scheduler, started by the same command on each of them.

    python -m slurm_rl join +cluster=runpod +exp=... [--rank N] [--nodes N] [--head HOST] [--port PORT]
    python -m slurm_rl join --run <run directory>     resume a run, on as many machines as there are now

The rank of a machine comes from its environment (slurm_rl/node/rank_discovery.py) or the flags. Node 0 creates the run
directory and runs the controller and an agent; the others connect to it.
"""

import argparse
import contextlib
import os
import secrets
import signal
import socket
from typing import Any

import yaml

from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.find import find_run
from slurm_rl.cli.foreground import announce_and_follow, stop_like_ctrl_c
from slurm_rl.cli.output import note
from slurm_rl.config.load import compose
from slurm_rl.config.parse import parse_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError, RunDirError
from slurm_rl.launch.controller.create import check_is_free, copy_functions, create_run, snapshot_code, write_run
from slurm_rl.launch.jobs import held_to_resume, submit_run
from slurm_rl.launch.machines.place import HeadPlace, head_secret, listen, worker_secret, write_place
from slurm_rl.launch.machines.worker import Invitation, Welcome, WorkerMachine
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.launch.runs.find import load_plan, remember, resolve
from slurm_rl.launch.runs.start import Started, choose_directory, plan_in
from slurm_rl.node.rank_discovery import Flags, NodeIdentity, discover
from slurm_rl.node.rendezvous import comes_true
from slurm_rl.plan.image_file import check_image_is_there
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, expect_writable, read_json

# A file that the head wrote a moment ago may be hidden from us for so long by a network file system.
_SEE_S = 3.0


def run(args: argparse.Namespace) -> int:
    flags = Flags(args.rank, args.nodes, args.head, args.port)
    identity = discover(os.environ, flags)
    args.resumed = args.resumed and str(resolve(args.resumed))
    config = _load(args, identity)
    note(f"slurm_rl: this is {_describe(identity)}, by the word of {identity.source}")
    if identity.is_head:
        return _run_head(config, identity, resumed=args.resumed)
    return _run_worker(config, identity, named=args.resumed or config.run_dir)


def _describe(identity: NodeIdentity) -> str:
    what = "a worker" if identity.rank is None else "node 0, the head" if identity.is_head else f"node {identity.rank}"
    return f"{what} of {identity.num_nodes}" if identity.num_nodes else what


def _load(args: argparse.Namespace, identity: NodeIdentity) -> RunConfig:
    """Return the config with this machine's flags in place of the preset's values."""
    named = args.resumed
    if named is None:
        overrides = check_overrides(args.rest)
        tree = compose([*overrides, "cluster.launcher=manual"], config_dir=args.config_dir)
    elif args.rest:
        raise ConfigError("a resumed run keeps its config", seen=" ".join(args.rest), action="leave out either")
    else:
        tree = yaml.safe_load(find_run([named]).config.read_text(encoding="utf-8"))
    if identity.num_nodes is not None:
        tree["cluster"]["num_nodes"] = identity.num_nodes
    if identity.port is not None:
        tree["cluster"]["head_port"] = identity.port
    if identity.wants_debugger:
        tree["cluster"]["env"].setdefault("RAY_DEBUG", "legacy")
    config = parse_config(tree, is_run=named is None)
    if not config.cluster.launcher_entry.by_node:
        raise RunDirError(
            "`join` resumes only runs that `join` started", seen=named, action=f"python -m slurm_rl resume {named}"
        )
    return config


# ---- the head ------------------------------------------------------------------------------------


def _run_head(config: RunConfig, identity: NodeIdentity, *, resumed: str | None) -> int:
    directory = RunDir(resumed) if resumed else choose_directory(config)
    if resumed is None:
        check_is_free(directory)
    with held_to_resume(directory) if resumed is not None else contextlib.nullcontext():
        started = _submit(config, identity, directory, is_resumed=resumed is not None)
    # After the run has begun: before, a stop has nothing to save.
    signal.signal(signal.SIGTERM, stop_like_ctrl_c)
    signal.signal(signal.SIGHUP, stop_like_ctrl_c)
    return announce_and_follow(started)


def _submit(config: RunConfig, identity: NodeIdentity, directory: RunDir, *, is_resumed: bool) -> Started:
    plan = plan_in(config, directory)
    check_inputs(config, note, is_new=not is_resumed)
    check_image_is_there(plan)
    listen(config.cluster.head_port).close()  # print before anything starts
    if is_resumed:
        if (before := load_plan(directory).num_nodes) != plan.num_nodes:
            note(f"slurm_rl: {plan.num_nodes} nodes now, {before} before")
        write_run(directory, config, plan)
    else:
        create_run(directory, config, plan)
    head_secret(directory, os.environ)
    write_place(directory, HeadPlace(config.cluster.head_port, secrets.token_hex(16), identity.hosts))
    port, within = config.cluster.head_port, f"within {plan.limits.start_timeout_s:g} s"
    note(f"nodes   {plan.num_nodes}; the others come to port {port} of this machine {within}")
    submitted = submit_run(directory, plan)
    remember(directory.path, [submitted.job_id])
    return Started(directory, plan, submitted)


# ---- the others ----------------------------------------------------------------------------------


def _run_worker(config: RunConfig, identity: NodeIdentity, *, named: str | None) -> int:
    if identity.head is None:
        raise ConfigError(
            f"a worker needs the address of the head, which {identity.source} does not provide",
            seen="nothing",
            action="--head <name or address of node 0>",
        )
    timeout_s = config.job.start_timeout_s
    note(f"slurm_rl: the head is {identity.head}, port {config.cluster.head_port}")
    secret = worker_secret(named, os.environ, timeout_s, lambda: False)
    hello: dict[str, Any] = {
        "rank": identity.rank,
        "name": identity.name or socket.gethostname(),
        "num_nodes": identity.num_nodes,
        "config": config.model_dump(mode="json"),
    }
    invitation = Invitation(identity.head, config.cluster.head_port, secret, hello, timeout_s)
    return WorkerMachine(invitation, lambda place: _prepare(config, place)).main()


def _prepare(config: RunConfig, place: Welcome) -> tuple[JobPlan, bool]:
    """Prepare the run directory for the agent: the head's own, or a copy at the same path on this machine."""
    directory = RunDir(place.run_dir)
    if _sees_head(directory, place.word):
        return JobPlan.from_json(read_json(directory.plan)), True
    cluster = config.cluster.model_copy(update={"num_nodes": place.num_nodes})
    config = config.model_copy(update={"run_dir": place.run_dir, "cluster": cluster})
    plan = plan_in(config, directory)
    then = "or choose run_dir= or cluster.run_root= that every machine can write to"
    with expect_writable(directory.path, then, what="the head's run directory, on this machine at the same path,"):
        directory.path.mkdir(parents=True, exist_ok=True)
        snapshot_code(directory.code)
        copy_functions(directory.code, [config])
        write_run(directory, config, plan)
    return plan, False


def _sees_head(directory: RunDir, word: str) -> bool:
    """Return whether this machine shares the run directory of the head."""
    file = directory.machines

    def sees() -> bool:
        # List the folder instead of opening the file: NFS may cache its absence for a minute.
        return file in set(directory.path.iterdir()) and read_json(file)["word"] == word

    return directory.path.is_dir() and comes_true(sees, _SEE_S)
