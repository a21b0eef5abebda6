"""Command line of the chaos benchmark; see the package's docstring."""

import argparse
import contextlib
import functools
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import chaos
from benchmarks.chaos.disk import Disk
from benchmarks.chaos.findings import expected_rows, render_table, strip_times
from benchmarks.chaos.judge import Limits, find_broken, read_outcome
from benchmarks.chaos.kinds import BY_NAME, choose_kinds
from benchmarks.chaos.schedule import Fault, build_schedule, cut_piece
from benchmarks.chaos.stage import ROOT, make_scene, run_cli, set_clocks, start_demo, start_light
from benchmarks.chaos.storm import Storm
from benchmarks.chaos.watch import Watch, append_signs
from slurm_rl.run_dir.jsonl import read_rows
from tests.slurm.cluster import Cluster, is_possible
from tests.slurm.light.runs import LightRun

_DISK_MB = {"light": 100, "demo": 4000}


def main(words: list[str] | None = None) -> int:
    args = parse(words)
    if reason := is_possible():
        print(f"no test Slurm here: {reason}", file=sys.stderr)
        return 2
    # Short, since Unix sockets are created below; in a folder that every user may traverse.
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    with contextlib.ExitStack() as stack:
        has = {"demo"} if args.trainer == "demo" else set()
        has |= {"accounting"} if args.accounting else set()
        disk = _make_disk(folder, stack, _DISK_MB[args.trainer])
        has |= {"disk"} if disk is not None else set()
        clock = set_clocks(folder)
        faults = plan(args, frozenset(has))
        # Spare nodes for those that are off, and folders that all nodes must see.
        shared = [folder, *([disk.path] if disk else []), ROOT, Path(sys.prefix)]
        root = Path(tempfile.mkdtemp(prefix="slrl-", dir="/tmp"))
        num_nodes = args.nodes + args.spares + 2
        cluster = stack.enter_context(Cluster(root, num_nodes=num_nodes, accounting=args.accounting, shared=shared))
        broken, _ = run_storm(args, cluster, disk, clock, folder, faults)
    if broken:
        print(f"kept: {folder}, {root}")
    else:
        for path in (folder, root):
            shutil.rmtree(path)
    return int(bool(broken))


def parse(words: list[str] | None = None) -> argparse.Namespace:
    return _parser().parse_args(words)


def plan(args: argparse.Namespace, has: frozenset[str]) -> tuple[Fault, ...]:
    """Return the faults of this piece."""
    kinds = [BY_NAME[name] for name in args.only] or choose_kinds(has)
    faults = build_schedule(args.seed, args.minutes * 60, args.every, kinds)
    return cut_piece(faults, args.minutes * 60, *args.piece)


def run_storm(
    args: argparse.Namespace,
    cluster: Cluster,
    disk: Disk | None,
    clock: Path,
    folder: Path,
    faults: tuple[Fault, ...],
) -> tuple[list[str], Storm]:
    """Run a storm; print and return violated guarantees, with the storm."""
    where = disk.path if disk else folder
    words = [f"job.num_spare_nodes={args.spares}", *args.words]
    expected: list[dict[str, Any]] = []
    if args.trainer == "demo":
        calm = start_demo(cluster, _made(where / "calm"), args.nodes, words)
        calm.wait_for_end(timeout_s=1800)
        expected = strip_times(read_rows(calm.run_dir.metrics))
    start = start_demo if args.trainer == "demo" else start_light
    run = start(cluster, _made(where / "storm"), args.nodes, words)
    resume = functools.partial(_resume, run)
    scene = make_scene(cluster, run, disk, clock, args.trainer)
    watch = Watch(run.run_dir, scene.find_down)
    storm = Storm(scene, watch, resume, args.log, may_finish=args.trainer == "demo")
    watch.start()
    try:
        run.wait_for_events("checkpoint/saved", timeout_s=600)
        storm.record("begin", seed=args.seed, faults=len(faults), nodes=args.nodes, trainer=args.trainer)
        storm.run_schedule(faults, args.minutes * 60 / args.piece[1])
        (run.run_dir.path / "finish").touch()
        run.wait_for_end(timeout_s=600)
        if args.trainer == "light":
            rows = read_rows(run.run_dir.metrics)
            expected = expected_rows(rows[-1]["step"], args.nodes)
        limits = Limits(args.process_s, args.node_s, args.ettr)
        broken = storm.broken + find_broken(run, expected, storm.hits, watch.signs, limits)
    finally:
        watch.close()
        if args.log:
            append_signs(args.log, watch.signs)
    print(render_table([(storm.hits, watch.signs)]))
    outcome = read_outcome(run.run_dir, watch.signs)
    storm.record("end", says=outcome.render(), broken=len(broken), **asdict(outcome))
    for promise in broken:
        storm.record("broken", promise=promise)
    return broken, storm


def _resume(run: LightRun) -> None:
    run_cli(run.cluster, run.run_dir.path.parent, "resume", str(run.run_dir.path))
    run.job = LightRun.open(run.cluster, run.run_dir.path).job


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _make_disk(folder: Path, stack: contextlib.ExitStack, size_mb: int) -> Disk | None:
    try:
        disk = Disk(folder, size_mb)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no loop devices here, so no faults of disks: {error}", file=sys.stderr)
        return None
    stack.callback(disk.close)
    return disk


def _parse_piece(text: str) -> tuple[int, int]:
    piece, of = map(int, text.split("/"))
    if not 1 <= piece <= of:
        raise argparse.ArgumentTypeError(f"a piece is 1/8 to 8/8; got {text}")
    return piece, of


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=(chaos.__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--seed", type=int, default=1)
    add("--minutes", type=float, default=3.0)
    add("--nodes", type=int, default=4, help="of the run; the cluster has two more, and the spares")
    add("--spares", type=int, default=0, help="job.num_spare_nodes")
    add("--every", type=float, default=20.0, help="seconds between two faults, on average")
    add("--piece", type=_parse_piece, default=(1, 1), metavar="I/N", help="only the I-th of N parts of that time")
    add("--only", nargs="+", choices=sorted(BY_NAME), default=[], metavar="KIND", help="only these faults")
    add("--trainer", choices=["light", "demo"], default="light")
    add("--accounting", action="store_true", help="with slurmdbd, which then fails too")
    add("--process-s", type=float, default=5.0, help="in which the death of a process must be seen")
    add("--node-s", type=float, default=20.0, help="in which the loss of a node must be seen")
    add("--ettr", type=float, default=0.0, help="least share of the time in steps that last")
    add("--log", type=Path, help="gets a line of JSON for each thing that happens")
    add("words", nargs="*", help="words of the config, as behind python -m slurm_rl")
    return parser


if __name__ == "__main__":
    sys.exit(main())
