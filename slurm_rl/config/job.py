"""Config of the job: time limit, restarts, evaluation, Ray cluster, logging."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from slurm_rl.config.paths import check_url
from slurm_rl.config.rows import EvalSetConfig, SetName
from slurm_rl.config.section import NonEmpty, NonNegativeInt, PositiveFloat, PositiveInt, Section, checked_by
from slurm_rl.config.text import OneLine

PLANNED_LEAD_S = 120
_TIME_FORMS = {
    r"(?P<m>\d+)": "minutes",
    r"(?P<m>\d+):(?P<s>\d+)": "MM:SS",
    r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)": "HH:MM:SS",
    r"(?P<d>\d+)-(?P<h>\d+)": "D-HH",
    r"(?P<d>\d+)-(?P<h>\d+):(?P<m>\d+)": "D-HH:MM",
    r"(?P<d>\d+)-(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)": "D-HH:MM:SS",
}


def parse_minutes(value: str | int) -> int:
    """Return the minutes of a Slurm time limit; seconds are rounded up, as Slurm does.

    >>> parse_minutes("1-02:00:00"), parse_minutes("10:30"), parse_minutes(45)
    (1560, 11, 45)
    """
    text = str(value).strip()
    for pattern in _TIME_FORMS:
        match = re.fullmatch(pattern, text)
        if match:
            parts = {key: int(number) for key, number in match.groupdict().items()}
            seconds = parts.get("d", 0) * 86400 + parts.get("h", 0) * 3600 + parts.get("m", 0) * 60 + parts.get("s", 0)
            if seconds > 0:
                return -(-seconds // 60)
    raise ValueError(f"a time limit is one of {', '.join(_TIME_FORMS.values())} and above 0; got {text!r}")


class JobConfig(Section):
    """Time limit, restarts and hang detection."""

    time_limit: Annotated[OneLine, checked_by(parse_minutes)] | None = None
    """Time limit in Slurm's forms (minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS); null: the partition's
    default."""
    checkpoint_lead_s: PositiveInt | Literal["auto"] = "auto"
    """Seconds before the time limit at which the run saves a checkpoint and stops; auto: 120, and more if its saves and
    steps have taken longer."""
    max_failures: NonNegativeInt = 0
    """Failed attempts that are retried before the run ends; bad input is not retried."""
    num_spare_nodes: NonNegativeInt = 0
    """Nodes allocated beyond cluster.num_nodes; a spare replaces a lost node within the same job."""
    start_timeout_s: PositiveFloat = 600.0
    """Timeout from the start of an attempt until all nodes joined the Ray cluster or torchrun's rendezvous."""
    heartbeat_timeout_s: PositiveFloat = 300.0
    """Shortest time without a heartbeat after which a rank or engine counts as hung; the timeout of a phase is five
    times its longest gap so far, and trainer.step_timeout_s until the phase has run five times."""
    depends_on: str | None = None
    """Directory, name or job id of a run that must finish before this one starts, by a Slurm dependency; model.path
    may be its future export, <run>/export."""
    debug: bool = False
    """Enable Ray's debugger, a larger flight recorder of NCCL or RCCL, and verbose logs; `plan` lists the variables."""
    debugger: Literal["distributed", "legacy"] = "distributed"
    """Debugger with debug=true: Ray's distributed debugger for VS Code (a task that raises waits), or `ray debug`."""

    @property
    def planned_lead_s(self) -> int:
        """Lead before the run has measured its saves."""
        return PLANNED_LEAD_S if self.checkpoint_lead_s == "auto" else self.checkpoint_lead_s

    @property
    def time_limit_min(self) -> int | None:
        """Time limit in minutes, rounded as Slurm does."""
        return None if self.time_limit is None else parse_minutes(self.time_limit)

    def problems(self) -> Iterator[str]:
        limit = self.time_limit_min
        if limit is not None and 60 * limit <= self.planned_lead_s:
            yield (
                f"job.time_limit must be longer than job.checkpoint_lead_s; got {limit} min and "
                f"{self.planned_lead_s} s, so the run would stop as it starts. "
                f"Next: a longer limit, or job.checkpoint_lead_s={20 * limit}"
            )


class EvalJobConfig(Section):
    """Job of one evaluation with eval.on_checkpoint; other settings are those of the run."""

    partition: OneLine | None = None
    """--partition; null: cluster.slurm.partition."""
    time_limit: Annotated[OneLine, checked_by(parse_minutes)] | None = None
    """Time limit in Slurm's forms; null: job.time_limit."""
    num_nodes: PositiveInt = 1
    """Nodes."""
    gpus_per_node: NonNegativeInt | None = None
    """GPUs per node; null: cluster.gpus_per_node."""


class EvalConfig(Section):
    """Evaluation on held-out rows."""

    interval: NonNegativeInt = 0
    """Steps between evaluations; 0: only before the first step and after the last."""
    greedy: bool = True
    """Evaluate with greedy decoding in addition to sampling."""
    num_samples: PositiveInt = 1
    """Completions per held-out prompt; accuracy/sampled is their mean (mean@k), and above 1 pass@k is logged."""
    only: bool = False
    """Evaluate `sets` once with the unchanged model, on engines only, without training; set by the verb `eval`."""
    on_checkpoint: bool = False
    """Evaluate `sets` on each saved checkpoint, in a Slurm job of its own (eval.job), and not in the run; the results
    are in the run's metrics, status and report at the checkpoint's step."""
    job: EvalJobConfig = EvalJobConfig()
    """Options of these jobs."""
    sets: dict[SetName, EvalSetConfig] = Field(default={})
    """Additional evaluation sets, by name: +eval.sets.aime.data=aime.jsonl; columns that a set leaves out are inherited
    from data."""


class RayConfig(Section):
    """The Ray cluster of the run."""

    object_store_gb: PositiveFloat = 2.0
    """Shared memory of the object store on each node, in GB; it holds all weights if they are transferred by Ray
    (rollout.weight_transfer)."""
    dashboard: bool = True
    """Serve Ray's dashboard and job API on the head's loopback address; false saves 2 s at the start."""
    dashboard_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of the dashboard; null: a free port of the job's range."""


class WandbConfig(Section):
    """Weights & Biases; the API key comes from WANDB_API_KEY or ~/.netrc."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """W&B mode; auto: online if a key is in the environment, else disabled."""
    project: str = "slurm_rl"
    """W&B project of the run."""
    entity: str | None = None
    """W&B user or team; null: the account's default."""

    @property
    def is_on(self) -> bool:
        return self.mode != "disabled"


class MlflowConfig(Section):
    """MLflow; credentials come from MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD."""

    tracking_uri: (
        Annotated[
            str,
            checked_by(
                functools.partial(check_url, "logging.mlflow.tracking_uri", example="https://host or file:///folder")
            ),
        ]
        | None
    ) = None
    """Tracking server, https://mlflow.example.org, or a shared store, file:///shared/mlruns; null: none."""
    experiment: NonEmpty = "slurm_rl"
    """MLflow experiment of the run."""

    @property
    def is_on(self) -> bool:
        return self.tracking_uri is not None


def _check_absolute(path: str) -> None:
    if not Path(path).is_absolute():
        raise ValueError(f"logging.prometheus.targets_dir must be an absolute path; got {path!r}")


class PrometheusConfig(Section):
    """An endpoint on the head node that Prometheus scrapes; it has no authentication."""

    enabled: bool = False
    """Serve the newest metrics and the number of events; prometheus.json in the run directory has the address."""
    address: Literal["loopback", "all"] = "loopback"
    """Interface that the endpoint listens on: loopback, or all interfaces of the head node."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of the endpoint; null: a free one."""
    targets_dir: Annotated[str, checked_by(_check_absolute)] | None = None
    """Folder that gets <run>.json with the address while the run trains, for file_sd_configs; null: none."""

    @property
    def is_on(self) -> bool:
        return self.enabled


class OtelConfig(Section):
    """OpenTelemetry; headers with credentials come from OTEL_EXPORTER_OTLP_HEADERS."""

    endpoint: (
        Annotated[str, checked_by(functools.partial(check_url, "logging.otel.endpoint", example="http://host:4318"))]
        | None
    ) = None
    """Collector that accepts OTLP over HTTP, such as http://collector:4318; null: none."""
    events: bool = True
    """Send events too, as log records; false for a receiver of metrics only, such as Prometheus."""

    @property
    def is_on(self) -> bool:
        return self.endpoint is not None


class LoggingConfig(Section):
    """Metrics, events and samples."""

    tensorboard: bool = True
    """Write curves for TensorBoard to the run directory."""
    wandb: WandbConfig = WandbConfig()
    """Weights & Biases."""
    mlflow: MlflowConfig = MlflowConfig()
    """MLflow."""
    prometheus: PrometheusConfig = PrometheusConfig()
    """Prometheus endpoint."""
    otel: OtelConfig = OtelConfig()
    """OpenTelemetry collector."""
    on_end: str | None = None
    """Shell command that the controller runs when the run has ended, also after a failure or cancel; null: none."""
    on_end_timeout_s: PositiveFloat = 60.0
    """Timeout of on_end."""
    samples_per_step: NonNegativeInt = 4
    """Completions per step written to samples.jsonl for the report."""
