"""Weights & Biases, as a guest: whatever it does, the training goes on.

* The API key stays in the environment or in netrc; it is never handed over, logged or written.
* One W&B run a run directory: its id is made once and every attempt goes on with it.
* No network: after `INIT_TIMEOUT_S` the run is kept on disk, and an event says how to upload it.
* Nothing but config, metrics and system load leaves: no code, no git state, no console, no argv.
"""

from __future__ import annotations

import contextlib
import importlib
import netrc
import os
import secrets
import shlex
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slurm_rl.config.job import WandbConfig
from slurm_rl.run_dir.run_dir import RunDir, append_event, write_text

INIT_TIMEOUT_S = 30.0
FINISH_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0


class WandbRun:
    """An open W&B run; after its first failure it is silent."""

    def __init__(self, run: RunDir, wandb_run: Any) -> None:
        self._run = run
        self._wandb_run = wandb_run
        self._folder = str(wandb_run.settings.sync_dir)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._guard(lambda: self._wandb_run.log(dict(values), step=step))

    def sum_up(self, values: Mapping[str, float | str]) -> None:
        """Set fields of the run's summary."""
        self._guard(lambda: self._wandb_run.summary.update(dict(values)))

    def close(self) -> None:
        """Upload what is left, for a bounded time."""
        self._guard(lambda: self._wandb_run.finish())
        _stop_service()

    def _guard(self, call: Callable[[], object]) -> None:
        if self._wandb_run is None:
            return
        try:
            call()
        # Any failure of a logging service must cost the run nothing but its curve there.
        except Exception as error:
            self._wandb_run = None
            append_event(self._run, "wandb/failed", cause=_cause(error), sync=f"wandb sync {shlex.quote(self._folder)}")


def open_wandb(run: RunDir, config: WandbConfig, run_name: str, config_dict: dict[str, Any]) -> WandbRun | None:
    """Open or resume the W&B run, offline where online does not work; None when disabled."""
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
        # An image may come without the package; that too must not end the run.
        wandb = importlib.import_module("wandb")
        run.wandb.mkdir(parents=True, exist_ok=True)
        opened = wandb.init(
            project=config.project,
            entity=config.entity,
            name=run_name,
            id=load_id(run),
            # Offline there is nobody to ask whether the id exists; the upload joins the attempts.
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
    """End W&B's helper process; a later init starts a new one.

    It must go before a second init, since it still holds the id of one that failed, and before the
    trainer leaves, since `finish` returns while it may still be writing. W&B waits for it without a
    limit and can call `sys.exit`, so that happens in a thread which nobody has to wait for.
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


def load_id(run: RunDir) -> str:
    """The W&B id of this run; made by the first attempt and kept."""
    path = run.path / "wandb_id"
    if not path.is_file():
        write_text(path, secrets.token_hex(8) + "\n")
    return path.read_text(encoding="utf-8").strip()


def find_key() -> str | None:
    """The API key that W&B itself would find without asking."""
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
    # Uploads what every offline attempt kept on disk, in order, into the one W&B run.
    sync = f"wandb sync --id {load_id(run)} {shlex.quote(str(run.wandb / 'wandb'))}/offline-run-*"
    append_event(run, "wandb/offline", cause=cause, sync=sync)


def _cause(error: Exception) -> str:
    """The error in words, without the key should the service echo it."""
    text = f"{type(error).__name__}: {error}"
    key = find_key()
    return text.replace(key, "<key>") if key else text
