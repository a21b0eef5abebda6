"""Plan a run: a pure function of its config and of facts of the submitting machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slurm_rl.config.user_files.load import load_function
from slurm_rl.plan.accelerator import list_variables
from slurm_rl.plan.job import PLAN_VERSION, ActorPlan, JobPlan, LayoutPlan, LimitsPlan, RayPlan
from slurm_rl.plan.layout import check_context, check_heads, choose_layout
from slurm_rl.plan.memory import ModelShape
from slurm_rl.plan.node_groups import list_groups
from slurm_rl.plan.preflight import build_preflight
from slurm_rl.plan.role_memory import fit_judge, fit_services
from slurm_rl.plan.task import ExternalPlan, TorchrunPlan, build_driver_argv, secret_names
from slurm_rl.plan.transfer import check_store, choose_transfer
from slurm_rl.plan.versions import expected_for

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


@dataclass(frozen=True)
class SubmitFacts:
    """Facts of the submitting machine."""

    python: str
    """Path of the running interpreter."""
    num_cpus: int
    """Cores that this process may use."""
    version: str
    """slurm_rl.__version__."""
    model_shape: ModelShape | None = None
    """Shape of the policy, if this machine sees its config.json."""
    reward_shape: ModelShape | None = None
    """Shape of reward.model.path or reward.judge.server.model."""
    reference_shape: ModelShape | None = None
    """Shape of reference.path."""


def build_plan(config: RunConfig, run_dir: str, facts: SubmitFacts) -> JobPlan:
    """Plan a run; `run_dir` is an absolute path.

    Raises:
        ConfigError: the layout is impossible; the message has both numbers.
    """
    cluster = config.cluster
    launcher = cluster.launcher_entry
    cpus = cluster.cpus_per_node or (facts.num_cpus if launcher.on_this_machine else None)
    actors, layout = _lay_out(config, facts, cpus)
    python = _choose_python(config, facts)
    sbatch, *het = load_function(launcher.options)(config, run_dir) if launcher.options else [{}]
    variables = list_variables(config, run_dir)
    return JobPlan(
        version=PLAN_VERSION,
        slurm_rl_version=facts.version,
        name=config.name,
        run_dir=run_dir,
        launcher=cluster.launcher,
        accelerator=cluster.accelerator,
        num_nodes=cluster.num_nodes,
        gpus_per_node=cluster.gpus_per_node,
        cpus_per_node=cpus,
        tmp_root=cluster.tmp_root,
        python=python,
        host_python=facts.python,
        setup=tuple(cluster.setup),
        env={item.name: item.value for item in variables},
        env_reasons={item.name: item.reason for item in variables},
        secret_names=secret_names(config),
        signs_copies=config.checkpoint.upload_url is not None,
        copies_to=config.checkpoint.upload_url,
        preflight=build_preflight(config),
        driver_argv=build_driver_argv(config.task, python, run_dir),
        actors=actors,
        weight_transfer=choose_transfer(layout.fill_in(config), actors, facts.model_shape)[0],
        layout=layout,
        ray=RayPlan(int(config.ray.object_store_gb * 1e9), config.ray.dashboard, config.ray.dashboard_port),
        limits=_limits(config),
        container=config.container.model_dump(mode="json"),
        sbatch=sbatch,
        het=tuple(het),
        num_spare_nodes=config.job.num_spare_nodes if launcher.is_queue else 0,
        node_groups=list_groups(config),
        torchrun=_torchrun(config, actors),
        external=_external(config, run_dir),
        expected=expected_for(config, cluster.accelerator),
        address=cluster.address,
        after=config.job.depends_on,
        evaluates_checkpoints=config.eval.on_checkpoint,
    )


def _lay_out(config: RunConfig, facts: SubmitFacts, cpus: int | None) -> tuple[tuple[ActorPlan, ...], LayoutPlan]:
    """Place the processes and choose their sizes."""
    # An external program has its own model and placement.
    shape = None if config.external else facts.model_shape
    check_context(config, shape)
    check_heads(config, shape)
    actors, layout = choose_layout(config, shape, facts.reference_shape, cpus)
    check_store(layout.fill_in(config), shape, actors)
    judge, budget = fit_judge(config, actors, facts.reward_shape) or (None, None)
    service = fit_services(config, actors, facts.reward_shape)
    return actors, replace(layout, service=service, judge=judge, judge_budget_gb=budget)


def _limits(config: RunConfig) -> LimitsPlan:
    job = config.job
    return LimitsPlan(
        job.time_limit_min,
        job.planned_lead_s,
        job.max_failures,
        job.start_timeout_s,
        job.heartbeat_timeout_s,
        config.trainer.step_timeout_s,
        learns_lead=job.checkpoint_lead_s == "auto" and config.external is None,
    )


def _choose_python(config: RunConfig, facts: SubmitFacts) -> str:
    # An image or another cluster has its own interpreter.
    elsewhere = "python" if config.cluster.launcher_entry.existing else "python3" if config.container.image else None
    return config.cluster.python or elsewhere or facts.python


def _external(config: RunConfig, run_dir: str) -> ExternalPlan | None:
    if config.external is None:
        return None
    from slurm_rl.plan.external_argv import RunValues, build_external_argv, build_limit_words

    run = RunValues(
        nodes=config.cluster.num_nodes,
        gpus_per_node=config.cluster.gpus_per_node,
        checkpoints=f"{run_dir}/checkpoints",
        export=f"{run_dir}/export",
    )
    first, later = (build_external_argv(config.external, run, resume=resume) for resume in (False, True))
    words = build_limit_words(config.external, run)
    return ExternalPlan(first, later, config.external.layout, words, config.external.limit_message)


def _torchrun(config: RunConfig, actors: tuple[ActorPlan, ...]) -> TorchrunPlan | None:
    if not config.under_torchrun:
        return None
    if config.external is not None:
        return TorchrunPlan(config.external.ranks_per_node or max(1, config.cluster.gpus_per_node), None)
    return TorchrunPlan(sum(actor.node == 0 for actor in actors), actors[0].num_threads)
