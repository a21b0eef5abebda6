"""One writer of each kind of file, and the check of its result."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import slurm_rl
from slurm_rl.data.groups import Group, SamplingSpec, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.envs.facts import Facts
from slurm_rl.launch.controller.controller import Controller
from slurm_rl.launch.controller.create import create_run
from slurm_rl.launch.controller.record import record_job
from slurm_rl.launch.here import LocalAllocation
from slurm_rl.models.checkpoint import background as waiting
from slurm_rl.models.checkpoint import step_saver
from slurm_rl.models.checkpoint.background import reserve_reason, write_or_report, write_whole
from slurm_rl.models.checkpoint.remote import RemoteFolder
from slurm_rl.models.checkpoint.remote_saver import RemoteSaver
from slurm_rl.models.checkpoint.step_saver import StepSaver
from slurm_rl.models.checkpoint.store import CheckpointStore
from slurm_rl.node.processes import start_child
from slurm_rl.plugins.image.formats import write_beside
from slurm_rl.plugins.prepare.dataset import write_rows
from slurm_rl.plugins.prepare.make_dataset import open_folder
from slurm_rl.plugins.prepare.manifest import Manifest, load_manifest
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rollout.response import Response
from slurm_rl.rollout.turn_log import BatchLog, TurnLog
from slurm_rl.rollout.turn_log_format import Row, render_row
from slurm_rl.run_dir.io_errors import annotate_path, written_beside
from slurm_rl.run_dir.jsonl import append_row, read_lines, read_rows
from slurm_rl.run_dir.run_dir import RunDir, append_event, hold, read_json, write_json, write_last
from slurm_rl.run_dir.run_lock import LockHolder, read_lock
from slurm_rl.trainers.common.metrics_log import MetricsLogger, keep_rows_up_to
from tests.plans import demo_config, demo_plan


@dataclass(frozen=True)
class Case:
    """A writer and its folder."""

    write: Callable[[], object]
    is_written: Callable[[], bool]
    """Whether the whole file is there."""
    is_kept: Callable[[], bool] = lambda: True
    """Whether the old file, or none, is there after a failure."""
    raises: bool = True
    """False: the run continues without the file, and the error is printed to stderr."""


Prepare = Callable[[Path], Case]
WRITERS: dict[str, Prepare] = {}


def writer(prepare: Prepare) -> Prepare:
    """Register a writer; its docstring names the files."""
    WRITERS[prepare.__name__] = prepare
    return prepare


def old_or_new(path: Path, old: bytes = b"") -> Callable[[], bool]:
    """Return the check of a file that is written by a rename."""
    return lambda: not path.exists() or path.read_bytes() == old or path.read_bytes().endswith(b"\n")


@writer
def new_run(folder: Path) -> Case:
    """config.yaml plan.json code/."""
    package = folder.parent / "package" / "slurm_rl"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("x = 1\n")
    runs: list[RunDir] = []

    def write() -> None:
        # Another folder each time: nothing can be removed from a read-only file system.
        runs.append(RunDir(folder / f"run-{len(runs)}"))
        saved, slurm_rl.__file__ = slurm_rl.__file__, str(package / "__init__.py")
        try:
            create_run(runs[-1], demo_config(), demo_plan(runs[-1]))
        finally:
            slurm_rl.__file__ = saved

    return Case(write, lambda: (runs[-1].require().code / "slurm_rl/__init__.py").is_file())


@writer
def job_record(folder: Path) -> Case:
    """job.json."""
    run = RunDir(folder)
    return Case(
        lambda: record_job(run, "local", "7"),
        lambda: read_json(run.job)["job_id"] == "7",
        old_or_new(run.job),
    )


@writer
def attempt_start(folder: Path) -> Case:
    """attempts/<n>/start.json .reserve secrets/."""
    run = RunDir(folder)
    plan = demo_plan(run)
    write_json(run.plan, plan.to_json())
    controller = Controller(run, plan, LocalAllocation(run, plan))

    def is_written() -> bool:
        newest = max(n for n in run.attempt_numbers() if run.attempt(n).start.is_file())
        return run.attempt(newest).logs.is_dir() and run.reserve.is_file()

    return Case(controller._begin_attempt, is_written)


@writer
def last_words(folder: Path) -> Case:
    """attempts/<n>/end.json outcome.json node-<n>.json, end.json."""
    run = RunDir(folder)
    return Case(
        lambda: write_last(run, run.end, {"state": "failed"}),
        lambda: read_json(run.end) == {"state": "failed"},
        old_or_new(run.end),
        raises=False,
    )


@writer
def logs(folder: Path) -> Case:
    """attempts/<n>/logs/."""
    log = folder / "driver.log"

    def write() -> None:
        child = start_child([sys.executable, "-S", "-c", "print('said')"], os.environ, log, 9)
        assert child.wait(60) in (0, 120)  # Python's status if stdout cannot be written

    return Case(write, lambda: b"said" in log.read_bytes())


@writer
def lease(folder: Path) -> Case:
    """lease/<epoch>.json."""

    def is_held() -> bool:
        return read_lock(folder / "lease").holder is not None

    def write() -> None:
        # The process of a command that could not release the run has ended.
        with hold(RunDir(folder), replace(LockHolder.of_this_process("local", "7"), pid=2**30), lambda holder: False):
            pass

    return Case(write, is_held)


@writer
def events(folder: Path) -> Case:
    """events.jsonl."""
    run = RunDir(folder)
    append_event(run, "a/b", n=0)

    def are_whole() -> bool:
        return None not in read_lines(run.events)

    return Case(
        lambda: append_event(run, "a/b", n=1),
        lambda: are_whole() and read_rows(run.events)[-1]["n"] == 1,
        lambda: are_whole() and [row["n"] for row in read_rows(run.events)] in ([0], [0, 1]),
        raises=False,
    )


@writer
def metrics(folder: Path) -> Case:
    """metrics.jsonl tensorboard/."""
    run = RunDir(folder)
    append_row(run.metrics, {"step": 0, "stage": "grpo"})
    steps = lambda: [row["step"] for row in read_rows(run.metrics)]  # noqa: E731

    def write() -> None:
        logger = MetricsLogger(run, demo_config().logging, "a", {})
        try:
            logger.rewind(0)
            logger.log(1, "grpo", {"loss": 0.5})
        finally:
            logger.close()

    return Case(
        write,
        lambda: steps() == [0, 1] and bool(list(run.tensorboard.iterdir())),
        lambda: None not in read_lines(run.metrics) and steps() in ([0], [0, 1]),
    )


@writer
def rewind(folder: Path) -> Case:
    """metrics.jsonl samples.jsonl, rewound."""
    path = folder / "metrics.jsonl"
    for step in range(4):
        append_row(path, {"step": step})
    steps = lambda: [row["step"] for row in read_rows(path)]  # noqa: E731
    return Case(lambda: keep_rows_up_to(path, 1), lambda: steps() == [0, 1], lambda: steps() in ([0, 1], [0, 1, 2, 3]))


def _group() -> Any:
    prompt = EncodedPrompt(index=3, token_ids=[5, 12], text="3+", answer="7")
    result = RewardResult(item=RewardItem(completion="7", answer="7"), value=1.0, parts={})
    return Group(prompt, [Trajectory([9, 1], [-0.5, -0.25], "7", True, 4)], [result])


@writer
def journal(folder: Path) -> Case:
    """journal/ and its copy in a checkpoint."""
    spec = SamplingSpec(1, 8, 1.0, 1.0, seed=7, batch="rollout-3")
    line = render_row(Row(0, 0, 0, reply=Response.pack(_group().completions[0])))

    def open_again() -> BatchLog:
        again = TurnLog(folder / "run", Facts("replay", "a"), keeps_all=True, report=lambda *_, **__: None)
        again.resume(3, folder / "step-3")
        return again.open(spec, [_group().prompt])

    def write() -> None:
        (folder / "step-3").mkdir(parents=True, exist_ok=True)
        mine = TurnLog(folder / "run", Facts("replay", "a"), keeps_all=True, report=lambda *_, **__: None)
        batch = mine.open(spec, [_group().prompt])
        batch.write([line])
        batch.sync()
        mine.save(folder / "step-3", 3)
        batch.close()

    def is_kept() -> bool:
        histories = open_again().histories.values()
        return all([reply.unpack() for reply in it.replies] == _group().completions for it in histories)

    return Case(write, lambda: bool(open_again().histories) and is_kept(), is_kept)


TENSORS = {"weight": torch.arange(40_000, dtype=torch.float32)}


@writer
def checkpoint(folder: Path) -> Case:
    """checkpoints/step-<k>/."""
    return _checkpoint(folder, background=False)


@writer
def background_checkpoint(folder: Path) -> Case:
    """checkpoints/step-<k>/ in the background."""
    return _checkpoint(folder, background=True)


def _checkpoint(folder: Path, *, background: bool) -> Case:
    waiting._ASK_S, step_saver._POLL_S = 0.02, 0.002
    run, writer = RunDir(folder), ThreadPoolExecutor(1)

    def fill(place: Path) -> list[Path]:
        path = place / "rank-0.pt"
        if background:
            reserve_reason(path)
            writer.submit(write_or_report, path, lambda file: torch.save(TENSORS, file))
            return [path]
        write_whole(path, lambda file: torch.save(TENSORS, file))
        return []

    def save(step: int) -> None:
        saver = StepSaver(run, 1, background=background, timeout_s=20.0)
        saver.newest()
        try:
            with saver.saving(step, {}) as (place, pending):
                pending += fill(place)
            saver.wait()
        finally:
            saver.close(20.0)
            writer.submit(lambda: None).result()

    def newest() -> int:
        store = CheckpointStore(run.checkpoints)
        found = store.latest()
        assert found is not None and not store.skipped, store.skipped
        return found.step

    save(1)
    return Case(lambda: save(2), lambda: newest() == 2, lambda: newest() in (1, 2))


@writer
def torch_save(folder: Path) -> Case:
    """checkpoints/ of DeepSpeed, by its own code in PolicyEngine.save."""
    path = folder / "mp_rank_00_model_states.pt"

    def write() -> None:
        with annotate_path(folder):
            torch.save(TENSORS, path, _use_new_zipfile_serialization=False)

    return Case(write, lambda: torch.load(path, weights_only=True)["weight"].equal(TENSORS["weight"]))


@writer
def export(folder: Path) -> Case:
    """export/ model/ reference/."""
    target = folder / "export"

    def write() -> None:
        with written_beside(target) as beside:
            for name in ("a", "b"):
                save_file({name: TENSORS["weight"]}, beside / f"{name}.safetensors")

    def is_written() -> bool:
        found = {name: t for path in target.glob("*.safetensors") for name, t in load_file(path).items()}
        return sorted(found) == ["a", "b"]

    return Case(write, is_written, lambda: not target.exists() or is_written())


def _commit_one(folder: Path) -> Any:
    store = CheckpointStore(folder)
    (store.begin(1) / "a.bin").write_bytes(bytes(20_000))
    store.commit(1, {})
    return store


@writer
def remote_copy(folder: Path) -> Case:
    """checkpoint.upload_url, a folder."""
    store = _commit_one(folder.parent / "local")
    remote = RemoteFolder(f"file://{folder}", key=lambda: "k" * 32, retry_s=())
    # A half copy has no marker.
    return Case(
        lambda: remote.upload("step-1", store.root / "step-1"),
        lambda: remote.steps() == [1],
        lambda: remote.steps() in ([], [1]),
    )


@writer
def fetched_copy(folder: Path) -> Case:
    """restored copies."""
    remote = RemoteFolder(f"file://{folder.parent}/bucket", key=lambda: "k" * 32, retry_s=())
    remote.upload("step-1", _commit_one(folder.parent / "far").root / "step-1")
    run = RunDir(folder)
    store = CheckpointStore(run.checkpoints)
    saver = RemoteSaver(run, store, remote)
    newest = lambda: getattr(store.latest(), "step", None)  # noqa: E731
    return Case(lambda: saver.fetch_newer(-1), lambda: newest() == 1, lambda: newest() in (None, 1))


@writer
def prepared_rows(folder: Path) -> Case:
    """prepare: rows and manifest."""
    place = folder / "gsm8k"

    def write() -> None:
        with open_folder(place):
            rows = write_rows(place, "train.jsonl", [{"a": 1}])
            Manifest(name="a", folder=str(place), revision="r", commit="c", sources=[], outputs=[rows]).save()

    def is_written() -> bool:
        found = load_manifest(place)
        return found is not None and not found.find_change(place, "r")

    return Case(write, is_written, lambda: load_manifest(place) is None or is_written())


@writer
def image(folder: Path) -> Case:
    """images and their manifests."""
    path = folder / "rl.sqsh"
    content = bytearray(96)
    content[:4], content[28:30], content[40:48] = b"hsqs", (4).to_bytes(2, "little"), (96).to_bytes(8, "little")

    def write() -> None:
        with write_beside(path) as beside:
            beside.write_bytes(content)

    return Case(write, path.is_file, lambda: not path.exists() or path.stat().st_size == len(content))
