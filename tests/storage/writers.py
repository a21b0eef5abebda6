"""Everything of the project that writes files: who, how it is called, and what of it must be there afterwards."""

from __future__ import annotations

import functools
import io
import os
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import slurm_rl
from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.health.evidence import Evidence, note_evidence, note_passed
from slurm_rl.plugins.health.site import publish, read_site
from slurm_rl.run_dir.jsonl import append_row, read_lines, read_rows
from slurm_rl.run_dir.run_dir import RunDir, append_event, read_json, write_json, write_last, write_text


@dataclass(frozen=True)
class Case:
    """One writer at work in a folder of its own."""

    write: Callable[[], object]
    is_written: Callable[[], bool]
    """Whether what it writes is there, whole."""
    is_kept: Callable[[], bool] = lambda: True
    """Whether what was there before, or nothing, is there after a failure; never a half."""
    raises: bool = True
    """False of what a run can do without, or what must be said all the same: it is told on stderr."""


@dataclass(frozen=True)
class Writer:
    files: str
    code: tuple[str, ...]
    """The functions, `module.qualified name` below slurm_rl."""
    prepare: Callable[[Path], Case]


WRITERS: dict[str, Writer] = {}
_Prepare = Callable[[Path], Case]


def writer(files: str, *code: str) -> Callable[[_Prepare], _Prepare]:
    def add(prepare: _Prepare) -> _Prepare:
        WRITERS[prepare.__name__] = Writer(files, code, prepare)
        return prepare

    return add


@functools.cache
def demo_config() -> RunConfig:
    return load_config(["+exp=demo", "logging.wandb.mode=disabled"])


@functools.cache
def _any_plan() -> JobPlan:
    return build_plan(demo_config(), "/runs/a", SubmitFacts("/python", 4, "1"))


def demo_plan(run: RunDir) -> JobPlan:
    return replace(_any_plan(), run_dir=str(run.path))


def old_or_new(path: Path, old: bytes) -> Callable[[], bool]:
    """Of a file that is renamed into its place."""
    return lambda: not path.exists() or path.read_bytes() == old or path.read_bytes().endswith(b"\n")


# ---- the run directory ---------------------------------------------------------------------------


@writer(
    "config.yaml plan.json code/",
    "config.user_files.read._copy",
    "launch.controller.create.create_run",
    "launch.controller.create.write_run",
    "launch.controller.create.snapshot_code",
    "launch.sweep.create._create_run",
    "trainers.supervised.__main__.begin",
    "launch.ray.allocation.open_run",
    "cli.join._prepare",
)
def new_run(folder: Path) -> Case:
    from slurm_rl.launch.controller.create import create_run

    package = folder.parent / "package" / "slurm_rl"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("x = 1\n")
    runs: list[RunDir] = []

    def write() -> None:
        # Another one each time, as the user is told to: of a file system that is read-only nothing can be removed.
        runs.append(RunDir(folder / f"run-{len(runs)}"))
        saved, slurm_rl.__file__ = slurm_rl.__file__, str(package / "__init__.py")
        try:
            create_run(runs[-1], demo_config(), demo_plan(runs[-1]))
        finally:
            slurm_rl.__file__ = saved

    return Case(write, lambda: (runs[-1].require().code / "slurm_rl/__init__.py").is_file())


@writer(
    "job.json",
    "launch.controller.record.record_job",
    "launch.jobs.submit_run",
    "launch.controller.record.record_end",
)
def job_record(folder: Path) -> Case:
    from slurm_rl.launch.controller.record import record_job

    run = RunDir(folder)
    return Case(
        lambda: record_job(run, "local", "7"),
        lambda: read_json(run.job)["job_id"] == "7",
        old_or_new(run.job, b""),
    )


@writer("sweep.json arrays/", "launch.sweep.ledger.save_ledger", "launch.sweep.create.create_runs")
def sweep(folder: Path) -> Case:
    from slurm_rl.launch.sweep.ledger import Ledger, SweepDir, SweepRun, load_ledger, save_ledger

    old, new = Ledger("a", "m", False), Ledger("a", "m", False, (SweepRun(0, ("optim.lr=1",)),))
    save_ledger(SweepDir(folder), old)
    return Case(
        lambda: save_ledger(SweepDir(folder), new),
        lambda: load_ledger(SweepDir(folder)) == new,
        lambda: load_ledger(SweepDir(folder)) in (old, new),
    )


@writer("pipeline.yaml", "cli.pipeline.run_pipeline")
def pipeline(folder: Path) -> Case:
    from slurm_rl.launch.runs.pipeline import PIPELINE_FILE, find_stages

    def write() -> None:
        write_text(folder / PIPELINE_FILE, "a: seed=1\nb: seed=2\n")

    return Case(write, lambda: len(find_stages(folder)) == 2, lambda: len(find_stages(folder)) in (0, 2))


@writer(
    "submitit/job.sh",
    "launch.executors.PlanExecutor._submit_command",
    "launch.slurm.sweep_arrays._submit_array",
)
def batch_script(folder: Path) -> Case:
    from slurm_rl.launch import executors

    run = RunDir(folder)
    executor = executors.PlanExecutor(replace(demo_plan(run), sbatch={"partition": "a"}))

    def write() -> None:
        saved, executors.submit = executors.submit, lambda argv: "7"
        try:
            executor._submit_command("true")
        finally:
            executors.submit = saved

    script = run.submitit / "job.sh"
    return Case(write, lambda: script.read_text().endswith("\n"), old_or_new(script, b""))


@writer(
    "attempts/<n>/start.json .reserve secrets/",
    "launch.controller.controller.Controller._begin_attempt",
    "run_dir.io_errors.reserve_space",
    "run_dir.run_dir.RunDir.point_latest_at",
    "run_dir.run_secret.keep_secret",
)
def attempt_start(folder: Path) -> Case:
    from slurm_rl.launch.controller.controller import Controller
    from slurm_rl.launch.here import LocalAllocation

    run = RunDir(folder)
    plan = demo_plan(run)
    write_json(run.plan, plan.to_json())
    controller = Controller(run, plan, LocalAllocation(run, plan))
    started = lambda: [n for n in run.attempt_numbers() if run.attempt(n).start.is_file()]  # noqa: E731
    return Case(controller._begin_attempt, lambda: run.attempt(max(started())).logs.is_dir() and run.reserve.is_file())


@writer(
    "attempts/<n>/end.json outcome.json node-<n>.json, end.json",
    "run_dir.run_dir.write_last",
    "launch.controller.controller.Controller._run_attempt",
    "launch.controller.controller.Controller._end",
    "node.stop.run_to_outcome.end",
    "launch.controller.supervisor.drive",
    "node.node_state.NodeState.write_record",
)
def last_words(folder: Path) -> Case:
    run = RunDir(folder)
    return Case(
        lambda: write_last(run, run.end, {"state": "failed"}),
        lambda: read_json(run.end) == {"state": "failed"},
        old_or_new(run.end, b""),
        raises=False,
    )


@writer(
    "records by which agents and controller meet",
    "node.rendezvous.publish_head",
    "node.external.ExternalTrainer._end",
    "node.external.main",
    "plan.checkpoint_layouts._mend_tracker",
    "launch.controller.ends.settle_killed_attempts",
    "launch.controller.agents.settle_silent_agent",
    "launch.controller.agents.settle_late_agents",
    "launch.controller.watch.AttemptWatch._look_for_dead_nodes",
    "plugins.health.preflight.run_preflight",
    "launch.machines.place.write_place",
    "launch.machines.nodes.take_file",
    "launch.machines.nodes.MachineNodes._end_others",
    "launch.machines.worker.WorkerMachine._start_agent",
    "launch.ray.allocation.RayTrainer._write_record",
    "launch.ray.allocation.RayTrainer.__init__",
    "node.agent.main",
    "workers.ray_nodes.SharedRayNodes.wait",
    "node.hang_monitor.HangMonitor.check",
    "node.hang_monitor.HangMonitor._react",
    "node.hang_monitor.HangMonitor._report",
    "node.hang_monitor.HangMonitor._judge",
    "node.hang_monitor.HangMonitor._dump_stacks",
    "node.hang_monitor.trigger_flight_recorders",
    "node.heartbeat.Heartbeat.__init__",
    "node.oom.note_out_of_memory",
    "launch.controller.ends.remedy_memory",
    "run_dir.run_dir.write_text",
    "run_dir.run_dir.write_bytes",
    "run_dir.run_dir.write_json",
)
def agent_records(folder: Path) -> Case:
    from slurm_rl.node.rendezvous import HeadRecord, publish_head

    attempt = RunDir(folder).attempt(1)
    write_text(attempt.head, "{}\n")
    record = HeadRecord("n1", "10.0.0.1", 7000, 17)
    return Case(
        lambda: publish_head(attempt, record),
        lambda: read_json(attempt.head)["host"] == "n1",
        old_or_new(attempt.head, b"{}\n"),
    )


@writer(
    "attempts/<n>/logs/",
    "node.processes.start_child",
    "node.processes.write_into",
    "node.driver.start_driver",
    "node.wait_for_ray_nodes.start_waiting",
    "node.torchrun.start_torchrun",
    "node.ray_node.RayNode._start_ray",
    "launch.controller.agents.start_agent",
    "launch.slurm.allocation.Guard.keep",
    "launch.slurm.srun.start_slurm_agents",
    "launch.executors.SessionExecutor._submit_command",
    "rewards.supervise.RewardServices._start",
)
def logs(folder: Path) -> Case:
    from slurm_rl.node.processes import start_child

    log = folder / "driver.log"

    def write() -> None:
        child = start_child([sys.executable, "-S", "-c", "print('said')"], os.environ, log, 9)
        assert child.wait(60) in (0, 120)  # Python's for a stdout that takes nothing

    # A child's own output is its own: the trainer's is in `metrics`, which prints.
    return Case(write, lambda: b"said" in log.read_bytes())


@writer(
    "kept copies of Ray's logs",
    "node.private_folder.copy_own_files",
)
def ray_logs(folder: Path) -> Case:
    from slurm_rl.node.ray_cluster import keep_ray_logs

    logs = folder.parent / "ray" / "r" / "session_2026" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "raylet.out").write_text("said\n")
    kept = folder / "ray-0" / "raylet.out"
    return Case(
        lambda: keep_ray_logs(logs.parents[2], folder / "ray-0"), lambda: kept.read_text() == "said\n", raises=False
    )


@writer(
    "the reward services' config and token",
    "rewards.supervise.RewardServices.__enter__",
)
def reward_services(folder: Path) -> Case:
    from slurm_rl.rewards.supervise import RewardServices

    services = RewardServices(demo_config().reward, folder, folder / "logs")
    services._start_s = 0.0  # what is written comes before the first service

    def write() -> None:
        from slurm_rl.errors import RewardError

        services._closing.set()
        services._thread = _Unstarted()  # type: ignore[assignment]
        services._replicas = []
        try:
            services.__enter__()
        except RewardError as error:
            assert "must be up" in str(error), error
        services.__exit__(None, None, None)

    return Case(write, lambda: (folder / "reward-token").read_text().strip() == services.token)


class _Unstarted:
    def start(self) -> None: ...
    def join(self) -> None: ...


@writer(
    "lease/<epoch>.json",
    "run_dir.run_lock.acquire",
    "run_dir.run_lock._claim",
    "run_dir.run_lock._link",
    "launch.controller.holding.take_run",
)
def lease(folder: Path) -> Case:
    from slurm_rl.launch.controller.holding import hold
    from slurm_rl.run_dir.run_lock import LockHolder, read_lock

    def is_held() -> bool:
        standing = read_lock(folder / "lease")
        return standing is not None and standing.holder is not None

    def write() -> None:
        # A command that could not give the run up is gone by the next one.
        with hold(RunDir(folder), replace(LockHolder.of_this_process("local", "7"), pid=2**30), lambda holder: False):
            pass

    return Case(write, is_held)


# ---- line files ----------------------------------------------------------------------------------


@writer(
    "events.jsonl",
    "run_dir.run_dir.append_event",
    "run_dir.jsonl._append",
    "run_dir.jsonl.append_row",
    "run_dir.run_dir.append_row",
)
def events(folder: Path) -> Case:
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


@writer("<site>/nodes/<name>.json", "plugins.health.site.publish")
def site_nodes(folder: Path) -> Case:
    def tell(check: str) -> None:
        publish(str(folder), [{"time": 1.0, "node": "n1", "check": check}], now=2.0)

    def checks() -> list[str]:
        return [row["check"] for row in read_site(str(folder))]

    tell("ecc")
    return Case(
        lambda: tell("xid"),
        lambda: checks() == ["ecc", "xid"],
        lambda: checks() in (["ecc"], ["ecc", "xid"]),
        raises=False,
    )


@writer(
    "nodes.jsonl",
    "plugins.health.evidence._append_rows",
    "plugins.health.nodes_command._write",
)
def nodes(folder: Path) -> Case:
    run = RunDir(folder)

    def note(name: str) -> None:
        note_evidence(run, Evidence.new(name, "ecc", "a row could not be remapped", "hard", attempt=1))
        note_passed(run, [f"{name}-passed"], "fabric")

    def names() -> list[str]:
        return [row["node"] if row else "damaged" for row in read_lines(run.nodes)]

    note("n1")
    both = ["n1", "n1-passed", "n2", "n2-passed"]
    return Case(
        lambda: note("n2"),
        lambda: names()[-2:] == both[2:],
        lambda: names() in (both[:2], both[:3], both),
        raises=False,
    )


@writer(
    "metrics.jsonl tensorboard/",
    "trainers.common.metrics_log.MetricsLogger.log",
    "trainers.common.metrics_log.TensorBoardRun.__init__",
    "launch.machines.nodes.MachineNodes._receive_news",
)
def metrics(folder: Path) -> Case:
    from slurm_rl.trainers.common.metrics_log import MetricsLogger

    run = RunDir(folder)
    append_row(run.metrics, {"step": 0, "stage": "grpo"})
    steps = lambda: [row["step"] for row in read_rows(run.metrics)]  # noqa: E731

    def write() -> None:
        logger = MetricsLogger(run, demo_config().logging.wandb, "a", {})
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


@writer("learned.json", "plugins.goodput.measure_saves.learn")
def learned(folder: Path) -> Case:
    from slurm_rl.plugins.goodput.measure_saves import learn
    from slurm_rl.run_dir.save_times import read_learned

    run = RunDir(folder)
    for seconds in (3.0, 4.0):
        append_row(run.events, {"time": 1.0, "kind": "checkpoint/saved", "seconds": seconds})
    return Case(lambda: learn(run), lambda: read_learned(run).save_s == 4.0, old_or_new(run.learned, b""), raises=False)


@writer("attempts/<n>/steps.jsonl", "run_dir.step_log.StepLog.add")
def steps(folder: Path) -> Case:
    from slurm_rl.run_dir.step_log import StepLog

    attempt = RunDir(folder).attempt(1)
    log = StepLog(attempt.steps)
    log.add(1, "grpo", {"time/train_s": 0.5})
    numbers = lambda: [row["step"] for row in read_rows(attempt.steps)]  # noqa: E731
    return Case(
        lambda: log.add(2, "grpo"),
        lambda: numbers() == [1, 2],
        lambda: None not in read_lines(attempt.steps) and numbers() in ([1], [1, 2]),
        raises=False,
    )


@writer("metrics.jsonl samples.jsonl, rewound", "trainers.common.metrics_log.keep_rows_up_to")
def rewind(folder: Path) -> Case:
    from slurm_rl.trainers.common.metrics_log import keep_rows_up_to

    path = folder / "metrics.jsonl"
    for step in range(4):
        append_row(path, {"step": step})
    steps = lambda: [row["step"] for row in read_rows(path)]  # noqa: E731
    return Case(lambda: keep_rows_up_to(path, 1), lambda: steps() == [0, 1], lambda: steps() in ([0, 1], [0, 1, 2, 3]))


def _group() -> Any:
    from slurm_rl.data.groups import Group, Trajectory
    from slurm_rl.data.tokenize import EncodedPrompt
    from slurm_rl.rewards.results import RewardItem, RewardResult

    prompt = EncodedPrompt(index=3, token_ids=[5, 12], text="3+", answer="7")
    result = RewardResult(item=RewardItem(completion="7", answer="7"), value=1.0, parts={})
    return Group(prompt, [Trajectory([9, 1], [-0.5, -0.25], "7", True, 4)], [result])


@writer("samples.jsonl", "trainers.grpo.rollout_files.log_samples")
def samples(folder: Path) -> Case:
    from slurm_rl.trainers.grpo.rollout_files import log_samples

    run = RunDir(folder)
    return Case(
        lambda: log_samples(run, 3, [_group()]),
        lambda: read_rows(run.samples)[-1]["step"] == 3,
        lambda: None not in read_lines(run.samples),
    )


@writer("rollouts/", "trainers.grpo.rollout_files.dump_groups")
def rollouts(folder: Path) -> Case:
    from slurm_rl.errors import DataError
    from slurm_rl.trainers.grpo.rollout_files import dump_groups, replay_groups

    def is_kept() -> bool:
        try:
            return replay_groups(folder, 3) == [_group()]
        except DataError as error:
            return "no step-3" in str(error)

    return Case(lambda: dump_groups(folder, 3, [_group()]), lambda: replay_groups(folder, 3) == [_group()], is_kept)


@writer(
    "journal/ and its copy in a checkpoint",
    "rollout.turn_log.TurnLog.resume",
    "rollout.turn_log.TurnLog.open",
    "rollout.turn_log.TurnLog.save",
)
def journal(folder: Path) -> Case:
    from slurm_rl.data.groups import SamplingSpec
    from slurm_rl.envs.facts import Facts
    from slurm_rl.rollout.response import Response
    from slurm_rl.rollout.turn_log import BatchLog, TurnLog
    from slurm_rl.rollout.turn_log_format import TurnKey, render_reply

    spec = SamplingSpec(1, 8, 1.0, 1.0, seed=7, batch="rollout-3")
    line = render_reply(TurnKey(0, 0, 0), Response.pack(_group().completions[0]))

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


@writer(
    "prompts.json wandb_id",
    "data.load_data.check_same_rows",
    "data.load_data.accept_new_rows",
    "trainers.common.wandb_run.load_id",
    "trainers.common.wandb_run._try_open",
)
def identity(folder: Path) -> Case:
    from slurm_rl.data.load_data import accept_new_rows, check_same_rows
    from slurm_rl.trainers.common.wandb_run import load_id

    run = RunDir(folder)

    def write() -> None:
        check_same_rows(run, 1, 1, [b"a", b"b"])
        accept_new_rows(run)
        check_same_rows(run, 1, 1, [b"a", b"b"])
        load_id(run)

    return Case(write, lambda: read_json(run.prompts)["num_train"] == 1 and len(load_id(run)) == 16)


@writer(
    "summary.json report.html",
    "plugins.report.summary.write_summary",
    "plugins.report.html.write_report",
    "plugins.report.html.write_sweep_report",
)
def report(folder: Path) -> Case:
    from slurm_rl.plugins.report.html import write_report
    from slurm_rl.plugins.report.summary import write_summary

    run = RunDir(folder)
    write_json(run.plan, demo_plan(run).to_json())
    write_text(run.config, "name: a\n")

    def write() -> None:
        write_summary(run)
        write_report(run)

    return Case(write, lambda: bool(read_json(run.summary)) and "</html>" in run.report.read_text())


# ---- checkpoints and models ----------------------------------------------------------------------

TENSORS = {"weight": torch.arange(40_000, dtype=torch.float32)}


@writer(
    "models/checkpoint/step-<k>/",
    "models.checkpoint.store.CheckpointStore.begin",
    "models.checkpoint.store.CheckpointStore.commit",
    "models.checkpoint.store.CheckpointStore.prune",
    "models.checkpoint.background.write_whole",
    "models.shards.save_tensors",
    "models.shards.save_rng",
    "models.policy.PolicyEngine.save",
    "trainers.grpo.rollout_files.save_rollouts",
    "trainers.grpo.trainer_state.RunSaver.save_run.write",
    "trainers.supervised.state.PolicySaver._begin",
)
def checkpoint(folder: Path) -> Case:
    return _checkpoint(folder, background=False)


@writer(
    "models/checkpoint/step-<k>/ in the background",
    "models.checkpoint.background._reserve_reason",
    "models.checkpoint.background._write_or_say_why",
    "models.checkpoint.background._ask",
)
def background_checkpoint(folder: Path) -> Case:
    return _checkpoint(folder, background=True)


def _checkpoint(folder: Path, *, background: bool) -> Case:
    from slurm_rl.models.checkpoint import background as waiting
    from slurm_rl.models.checkpoint import step_saver
    from slurm_rl.models.checkpoint.background import BackgroundWriter, write_whole
    from slurm_rl.models.checkpoint.step_saver import StepSaver
    from slurm_rl.models.checkpoint.store import CheckpointStore
    from slurm_rl.models.shards import save_rng, save_tensors

    waiting._ASK_S, step_saver._POLL_S = 0.02, 0.002
    run, files = RunDir(folder), BackgroundWriter()

    def fill(place: Path) -> list[Path]:
        save_rng(place / "rng-0.pt")
        path = place / "rank-0.pt"
        if background:
            files.start(path, lambda part: save_tensors(TENSORS, part))
            return [path]
        write_whole(path, lambda part: save_tensors(TENSORS, part))
        return []

    def save(step: int) -> None:
        saver = StepSaver(run, 1, background=background, timeout_s=20.0)
        saver.newest()
        try:
            saver.save(step, {}, fill)
            saver.wait()
        finally:
            saver.close(20.0)
            files.join()

    def newest() -> int:
        store = CheckpointStore(run.checkpoints)
        found = store.latest()
        assert found is not None and not store.skipped, store.skipped
        return found.step

    save(1)
    return Case(lambda: save(2), lambda: newest() == 2, lambda: newest() in (1, 2))


@writer(
    "checkpoints/ of DeepSpeed, by its own code in PolicyEngine.save",
    "models.fsdp2.FSDP2Backend.save",
)
def torch_save(folder: Path) -> Case:
    from slurm_rl.run_dir.io_errors import annotate_path

    path = folder / "mp_rank_00_model_states.pt"

    def write() -> None:
        with annotate_path(folder):
            torch.save(TENSORS, path, _use_new_zipfile_serialization=False)

    return Case(write, lambda: torch.load(path, weights_only=True)["weight"].equal(TENSORS["weight"]))


@writer(
    "export/ model/ reference/",
    "models.checkpoint.store.written_beside",
    "models.export.write_shards",
    "models.export.write_shards.write",
    "models.export.export_model",
    "models.export.copy_processors",
    "models.convert.convert_checkpoint",
    "models.lora.save_adapter",
    "models.policy.PolicyEngine.export_adapter",
    "models.tiny.build_tiny_model",
    "models.tiny_vl.build_tiny_vl",
    "trainers.supervised.objective._write",
)
def export(folder: Path) -> Case:
    from safetensors.torch import load_file

    from slurm_rl.models.checkpoint.store import written_beside
    from slurm_rl.models.export import write_shards

    target = folder / "export"

    def write() -> None:
        with written_beside(target) as beside:
            write_shards(beside, [("a", TENSORS["weight"]), ("b", TENSORS["weight"] + 1)], 200_000)

    def is_written() -> bool:
        found = {name: t for path in target.glob("*.safetensors") for name, t in load_file(path).items()}
        return sorted(found) == ["a", "b"] and (target / "model.safetensors.index.json").is_file()

    return Case(write, is_written, lambda: not target.exists() or is_written())


# ---- copies and caches ---------------------------------------------------------------------------


@writer("checkpoint.upload_url, where it is a folder", "models.checkpoint.remote.RemoteFolder._write")
def remote_copy(folder: Path) -> Case:
    from slurm_rl.models.checkpoint.remote import RemoteFolder
    from slurm_rl.models.checkpoint.store import CheckpointStore

    store = CheckpointStore(folder.parent / "local")
    if store.latest() is None:
        (store.begin(1) / "a.bin").write_bytes(bytes(20_000))
        store.commit(1, {})
    remote = RemoteFolder(f"file://{folder}", key=lambda: "k" * 32, retry_s=())
    # A half copy has no marker.
    return Case(
        lambda: remote.upload("step-1", store.root / "step-1"),
        lambda: remote.steps() == [1],
        lambda: remote.steps() in ([], [1]),
    )


@writer(
    "copies that come back",
    "models.checkpoint.remote.RemoteFolder.download.fetch",
    "models.checkpoint.remote_saver.RemoteSaver._fetch",
    "models.checkpoint.remote_saver.RemoteSaver._fetch_reference",
)
def fetched_copy(folder: Path) -> Case:
    from slurm_rl.models.checkpoint.remote import RemoteFolder
    from slurm_rl.models.checkpoint.remote_saver import RemoteSaver
    from slurm_rl.models.checkpoint.store import CheckpointStore

    far, bucket = CheckpointStore(folder.parent / "far"), folder.parent / "bucket"
    remote = RemoteFolder(f"file://{bucket}", key=lambda: "k" * 32, retry_s=())
    if far.latest() is None:
        (far.begin(1) / "a.bin").write_bytes(bytes(20_000))
        far.commit(1, {})
        remote.upload("step-1", far.root / "step-1")
    run = RunDir(folder)
    store = CheckpointStore(run.checkpoints)
    saver = RemoteSaver(run, store, remote)
    newest = lambda: getattr(store.latest(), "step", None)  # noqa: E731
    return Case(lambda: saver.fetch_newer(-1), lambda: newest() == 1, lambda: newest() in (None, 1))


@writer(
    "prepare: rows and manifest",
    "plugins.prepare.dataset.write_rows",
    "plugins.prepare.manifest.Manifest.save",
    "plugins.prepare.make_dataset.open_folder",
)
def prepared_rows(folder: Path) -> Case:
    from slurm_rl.plugins.prepare.dataset import write_rows
    from slurm_rl.plugins.prepare.make_dataset import open_folder
    from slurm_rl.plugins.prepare.manifest import Manifest, load_manifest

    place = folder / "gsm8k"

    def write() -> None:
        with open_folder(place):
            rows = write_rows(place, "train.jsonl", [{"a": 1}])
            Manifest(name="a", folder=str(place), revision="r", commit="c", sources=[], outputs=[rows]).save()

    def is_written() -> bool:
        found = load_manifest(place)
        return found is not None and not found.find_change(place, "r")

    return Case(write, is_written, lambda: load_manifest(place) is None or is_written())


@writer("prepare: verl's parquet", "plugins.prepare.verl_rows.write_parquet")
def verl_rows(folder: Path) -> Case:
    import pyarrow.parquet

    from slurm_rl.plugins.prepare.dataset import Question
    from slurm_rl.plugins.prepare.recipes.gsm8k import RECIPE
    from slurm_rl.plugins.prepare.verl_rows import render_row, write_parquet

    assert RECIPE.verl is not None
    question = Question(text="a" * 3000, answer="1", solution="b")
    rows = [render_row(RECIPE.verl, question, "train", number) for number in range(3)]
    path = folder / "trainers.common.parquet"

    def is_whole() -> bool:
        return path.is_file() and pyarrow.parquet.read_table(path).num_rows == len(rows)

    return Case(lambda: write_parquet(folder, path.name, rows), is_whole, lambda: not path.exists() or is_whole())


@writer(
    "prepare: archives and downloads",
    "plugins.prepare.archive._create",
    "plugins.prepare.recipes.mathv60k.build",
    "plugins.prepare.fetch_model.prepare_model.build",
)
def prepared_images(folder: Path) -> Case:
    from slurm_rl.plugins.prepare.archive import extract_archive

    archive = folder.parent / "images.tar"
    if not archive.exists():
        with tarfile.open(archive, "w") as tar:
            for name in "ab":
                info = tarfile.TarInfo(f"{name}.png")
                info.size = 3000
                tar.addfile(info, io.BytesIO(bytes(3000)))
    return Case(
        lambda: extract_archive(archive, folder / "images", max_files=10, max_bytes=10_000),
        lambda: all((folder / "images" / f"{name}.png").stat().st_size == 3000 for name in "ab"),
    )


@writer(
    "images and their manifests",
    "plugins.image.formats.write_beside",
    "plugins.image.formats._unpacked",
    "plugins.image.make._write_manifest",
    "plugins.image.recipe.write_context",
    "plugins.image.rootfs.write_layout",
    "plugins.image.rootfs._write",
    "plugins.image.command.run_check",
)
def image(folder: Path) -> Case:
    from slurm_rl.plugins.image.formats import write_beside

    path = folder / "trainers.grpo.sqsh"
    content = bytearray(96)
    content[:4], content[28:30], content[40:48] = b"hsqs", (4).to_bytes(2, "little"), (96).to_bytes(8, "little")

    def write() -> None:
        with write_beside(path) as beside:
            beside.write_bytes(content)

    return Case(write, path.is_file, lambda: not path.exists() or path.stat().st_size == len(content))


@writer("export --out", "plugins.export.command._write")
def exported_text(folder: Path) -> Case:
    from slurm_rl.plugins.export.command import _write

    path = folder / "trainers.common.dstack.yml"
    return Case(
        lambda: _write(path, "type: task\n", 0o644), lambda: path.read_text() == "type: task\n", old_or_new(path, b"")
    )


@writer("goodput --svg", "plugins.goodput.command.save_bar")
def bar_of_a_ledger(folder: Path) -> Case:
    from slurm_rl.plugins.goodput.command import save_bar
    from slurm_rl.plugins.goodput.types import Ledger

    path, total = folder / "bar.svg", Ledger("GPU", 1, 100.0, 10.0, 10.0, {"trained": 90.0, "bring_up": 10.0})
    return Case(lambda: save_bar(path, total), lambda: path.read_text().endswith("</svg>\n"), old_or_new(path, b""))


@writer("status --svg", "cli.status.save_picture")
def picture_of_runs(folder: Path) -> Case:
    from slurm_rl.cli.status import save_picture
    from slurm_rl.cli.table import RunLine

    path, table = folder / "launch.runs.svg", [RunLine("a", "running", 60.0, done=3, total=4)]
    whole = lambda: path.read_text().endswith("</svg>\n")  # noqa: E731
    return Case(lambda: save_picture(path, table, "runs"), whole, old_or_new(path, b""))


@writer("`site`'s preset", "plugins.site.command.save_preset")
def sites_preset(folder: Path) -> Case:
    from slurm_rl.plugins.site.command import save_preset

    path = folder / "cluster" / "mysite.yaml"
    path.parent.mkdir()
    path.write_bytes(b"old: 1\n")
    text = "# @package _global_\n"
    return Case(lambda: save_preset(path, text), lambda: path.read_text() == text, old_or_new(path, b"old: 1\n"))


OUTSIDE = {
    "models.checkpoint.final_copy._copy_what_stays": "a copy in the temporary folder; _write uploads it",
    "node.agent.copy_out": "starts that with a log; where the log cannot be, that is told, and no more",
    "launch.controller.agents.start_copy_here": "after the attempt: an event reports a failed start",
    "launch.slurm.srun.start_slurm_copy": "likewise, by an srun",
    "cli.output.catch_errors": "opens /dev/null",
    "launch.runs.find.remember": "a list outside the run; where it cannot be written, runs are named by their path",
    "cli.output.keep_traceback": "a traceback in the temporary folder; where it cannot be, stderr has all of it",
    "plugins.health.command.check_nodes": "a folder for one request; a failure is reported",
    "plugins.health.command.run": "a folder for one question, which goes with it; where it cannot be, that is told",
    "plugins.site.command.judge": "a preset in the temporary folder, to be composed and judged",
    "plugins.health.doctor_node.measure": "doctor's own folder; a node without an answer is named",
    "plugins.health.doctor_node.main": "likewise",
    "plugins.health.probes.main": "its own standard output",
    "plugins.health.fabric_rank.main": "its own standard output",
    "plugins.health.fabric_leader.measure_fabric": "starts that with a log; where that cannot be, nothing is tested",
    "node.environment._may_open": "asks whether a device may be opened",
    "node.private_folder.make_private_folder": "the node's own temporary folder, not the run's",
    "rewards.sandbox.inside.confine.enter_own_root": "a tmpfs inside the sandbox",
    "rewards.sandbox.inside.confine._show": "a tmpfs inside the sandbox",
    "rewards.sandbox.runs.probe_sandbox": "a file in the temporary folder that a sandbox must not see",
    "rewards.sandbox.process.Sandboxed.__enter__": "the sandbox's folder in the temporary folder",
    "rewards.sandbox.process.Sandboxed._write_job": "a pipe",
}
"""Writers whose files are not the run's, and why an error there is no matter of this table."""
