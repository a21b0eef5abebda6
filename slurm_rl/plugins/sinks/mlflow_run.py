"""MLflow: one run of the tracking server per run directory, which every attempt continues.

The row that was sent last is a tag, written with the row in one request, so no point is sent twice. Credentials are
those of MLflow's client: MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_rl.config.user_files.load import import_heavy
from slurm_rl.errors import MissingLibraryError
from slurm_rl.plugins.sinks.background import Background
from slurm_rl.plugins.sinks.run_id import load_id
from slurm_rl.plugins.sinks.stream import MetricRow, Sink, SinkContext

_ID, _SENT = "slurm_rl.id", "slurm_rl.sent"
_NOT_ALLOWED = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow refuses in names, such as that of accuracy/pass@4."""
_MOST_PARAMS, _LONGEST_PARAM = 100, 500


def open_mlflow(context: SinkContext) -> Sink:
    """Return the sink; the server is contacted in its thread.

    Raises:
        MissingLibraryError: MLflow is not installed.
    """
    try:
        import_heavy("mlflow.tracking", "logging.mlflow needs MLflow")
    except MissingLibraryError as error:
        raise MissingLibraryError(error.rule, seen=error.seen, action="pip install mlflow-skinny") from None
    return Background(context.run, "mlflow", MlflowRun(context))


class MlflowRun(Sink):
    """The run on the server, which is found or created at the first row."""

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._client: Any = None
        self._run_id = ""
        self._sent: tuple[int, tuple[str, ...]] = (-1, ())
        """The newest step on the server, and its stages."""

    def log(self, row: MetricRow) -> None:
        from mlflow.entities import Metric, RunTag

        if not self._run_id:
            self._run_id = self._open()
        step, stages = self._sent
        if row.step < step or (row.step == step and row.stage in stages):
            return
        stages = (*stages, row.stage) if row.step == step else (row.stage,)
        stamp = int(row.stamp * 1000)
        metrics = [Metric(_NOT_ALLOWED.sub("_", key), value, stamp, row.step) for key, value in row.values.items()]
        tag = RunTag(_SENT, f"{row.step} {' '.join(stages)}")
        run_id, self._run_id = self._run_id, ""
        # An answer that got lost: the next try first asks for the row that was sent last.
        self._client.log_batch(run_id, metrics=metrics, tags=[tag])
        self._run_id, self._sent = run_id, (row.step, stages)

    def close(self) -> None:
        """Mark the attempt's end; a later attempt continues the run."""
        if self._run_id:
            self._client.set_terminated(self._run_id)

    def _open(self) -> str:
        """Return the id of the run on the server, and read which row it has."""
        from mlflow.tracking import MlflowClient

        config = self._context.logging.mlflow
        # MLflow 3 refuses its file store without this; the user has named one.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        client = self._client = MlflowClient(tracking_uri=config.tracking_uri)
        known = client.get_experiment_by_name(config.experiment)
        experiment = known.experiment_id if known else client.create_experiment(config.experiment)
        own = load_id(self._context.run)
        found = client.search_runs([experiment], f"tags.`{_ID}` = '{own}'")
        if found:
            step, *stages = found[0].data.tags.get(_SENT, "-1").split()
            self._sent = (int(step), tuple(stages))
            client.update_run(found[0].info.run_id, status="RUNNING")
            return str(found[0].info.run_id)
        tags = {_ID: own, "slurm_rl.run_dir": str(self._context.run.path)}
        run_id = client.create_run(experiment, tags=tags, run_name=self._context.run.path.name).info.run_id
        self._log_params(run_id)
        return str(run_id)

    def _log_params(self, run_id: str) -> None:
        from mlflow.entities import Param

        params = [Param(key, str(value)[:_LONGEST_PARAM]) for key, value in flatten(self._context.config)]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(run_id, params=params[first : first + _MOST_PARAMS])


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables by dotted keys.

    >>> list(flatten({"optim": {"lr": 0.1}, "env": {}}))
    [('optim.lr', 0.1)]
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
