"""Weights & Biases. Its failures never stop the training.

* The API key stays in the environment or in netrc; it is never passed on, logged or written.
* A run directory has one W&B run, which every attempt resumes.
* Without network, after `INIT_TIMEOUT_S` the run stays on disk, and an event has the command to upload it.
* Only config, metrics and system load are sent: no code, git state, console or argv.
"""

import contextlib
import importlib
import netrc
import os
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slurm_rl.config.job import WandbConfig
from slurm_rl.plugins.goodput.read import summarize_goodput
from slurm_rl.plugins.sinks.run_id import load_id
from slurm_rl.plugins.sinks.stream import MetricRow, Sink, SinkContext
from slurm_rl.run_dir.run_dir import RunDir, append_event

INIT_TIMEOUT_S = 30.0
FINISH_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0


class WandbRun(Sink):
    """An open W&B run; it is disabled after its first failure."""

    def __init__(self, run: RunDir, wandb_run: Any) -> None:
        self._run = run
        self._wandb_run = wandb_run
        self._folder = str(wandb_run.settings.sync_dir)

    def log(self, row: MetricRow) -> None:
        # W&B ignores rows of steps that it has, which a resumed run repeats.
        self._guard(lambda: self._wandb_run.log(dict(row.values), step=row.step))

    def close(self) -> None:
        """Set the run's summary, and upload the rest within FINISH_TIMEOUT_S."""
        self._guard(lambda: self._wandb_run.summary.update(summarize_goodput(self._run)))
        self._guard(lambda: self._wandb_run.finish())
        _stop_service()

    def _guard(self, call: Callable[[], object]) -> None:
        if self._wandb_run is None:
            return
        try:
            call()
        except Exception as error:
            self._wandb_run = None
            append_event(self._run, "wandb/failed", cause=_cause(error), sync=f"wandb sync {shlex.quote(self._folder)}")


def open_sink(context: SinkContext) -> Sink | None:
    return open_wandb(context.run, context.logging.wandb, context.name, dict(context.config))


def open_wandb(run: RunDir, config: WandbConfig, run_name: str, config_dict: dict[str, Any]) -> WandbRun | None:
    """Open or resume the W&B run, offline if online fails; None if disabled."""
    key = find_key()
    if config.mode == "disabled" or (config.mode == "auto" and not key):
        return None
    if config.mode != "offline" and not key:
        _report_offline(run, "no API key: set WANDB_API_KEY or run `wandb login`")
    modes = [False] if config.mode == "offline" or not key else [True, False]
    tries = (_try_open(run, config, run_name, config_dict, online=online) for online in modes)
    return next((opened for opened in tries if opened is not None), None)


def _try_open(
    run: RunDir, config: WandbConfig, run_name: str, config_dict: dict[str, Any], *, online: bool
) -> WandbRun | None:
    mode = "online" if online else "offline"
    try:
        # An image may lack the package.
        wandb = importlib.import_module("wandb")
        run.wandb.mkdir(parents=True, exist_ok=True)
        opened = wandb.init(
            project=config.project,
            entity=config.entity,
            name=run_name,
            id=load_id(run),
            # The upload of offline runs joins the attempts.
            resume="allow" if online else None,
            mode=mode,
            dir=str(run.wandb),
            config=config_dict,
            settings=wandb.Settings(**_private_settings()),
        )
    except Exception as error:
        if online:
            _report_offline(run, _cause(error))
            _stop_service()
        else:
            append_event(run, "wandb/failed", cause=_cause(error))
        return None
    append_event(run, "wandb/started", mode=mode, **({"url": opened.url} if online else {}))
    return WandbRun(run, opened)


def _stop_service() -> None:
    """Stop W&B's helper process: before a second init, because it holds the id of a failed one, and before the end,
    because `finish` may return while it writes.

    W&B waits for it without a timeout and may call `sys.exit`, hence the thread.
    """

    def teardown() -> None:
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module("wandb").teardown()

    thread = threading.Thread(target=teardown, name="wandb-teardown", daemon=True)
    thread.start()
    thread.join(STOP_TIMEOUT_S)


def _private_settings() -> dict[str, Any]:
    return {
        "console": "off",
        "save_code": False,
        "disable_code": True,
        "disable_git": True,
        "disable_job_creation": True,
        # The metadata holds argv, user, host and the path of the program.
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
        "silent": True,
        "init_timeout": INIT_TIMEOUT_S,
        "finish_timeout": FINISH_TIMEOUT_S,
        "finish_timeout_raises": True,
    }


def find_key() -> str | None:
    """Return the API key that W&B would use."""
    if key := os.environ.get("WANDB_API_KEY"):
        return key
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        entry = netrc.netrc(path).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return entry[2] if entry else None


def _report_offline(run: RunDir, cause: str) -> None:
    sync = f"wandb sync --id {load_id(run)} {shlex.quote(str(run.wandb / 'wandb'))}/offline-run-*"
    append_event(run, "wandb/offline", cause=cause, sync=sync)


def _cause(error: Exception) -> str:
    """Return the error as text, without the key."""
    text = f"{type(error).__name__}: {error}"
    key = find_key()
    return text.replace(key, "<key>") if key else text
