"""The reward service as a process: `python -m slurm_rl.rewards.service --config reward.json ...`.

A run starts it for itself (supervise.py); outside of a run `python -m slurm_rl reward-server` does. Heavy imports
wait until `serve`, because the worker processes import this module again when they start.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm_rl.config.reward import RewardConfig
from slurm_rl.errors import ConfigError, DataError, SlurmRLError
from slurm_rl.node.processes import die_with_parent
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.run_dir.strangers import at_most

TOKEN_VARIABLE = "SLURM_RL_REWARD_TOKEN"
_GRACE_S = 5
_LONGEST_BACKLOG, _BACKLOG_SHARE = 2048, 4


def main(words: list[str] | None = None) -> int:
    """Serve until SIGTERM; 0 then, 1 when the workers kept dying, 2 for bad input."""
    parser = argparse.ArgumentParser(description="A reward service for one RewardConfig, written as JSON.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True, help="a listening socket that was inherited")
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True, help="end when this process does")
    args = parser.parse_args(words)
    die_with_parent(signal.SIGKILL, args.parent)
    try:
        config = RewardConfig.model_validate_json(args.config.read_bytes())
        listener = socket.socket(fileno=args.fd)
        return serve(config, listener, token=read_token(args.token_file))
    except SlurmRLError as error:
        print(f"reward service: {error}", file=sys.stderr)
        return error.exit_code


def serve(
    config: RewardConfig,
    listener: socket.socket,
    *,
    token: str | None,
    failure_reward: float = 0.0,
    answers: Mapping[str, str] | None = None,
) -> int:
    """Answer requests on a listening socket until SIGTERM or SIGINT, or until the workers keep dying (1)."""
    import uvicorn

    from slurm_rl.rewards.app import BoundedProtocol, ServiceState, build_app, limit_log_lines

    max_body_bytes = int(config.service.max_body_mb * 1e6)
    with RewardPool(config) as pool:
        state = ServiceState(pool, token, max_body_bytes, failure_reward, answers)
        settings = uvicorn.Config(
            build_app(state),
            log_level="warning",
            access_log=False,
            lifespan="off",
            http=BoundedProtocol,
            ws="none",
            backlog=_longest_backlog(),
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_GRACE_S,
        )
        limit_log_lines()
        server = uvicorn.Server(settings)
        pool.ended.add_done_callback(lambda _: setattr(server, "should_exit", True))
        host, port = listener.getsockname()[:2]
        print(f"reward service at http://{host}:{port}/get_reward, {config.num_workers} workers", flush=True)
        for signum in (signal.SIGTERM, signal.SIGINT):
            # uvicorn ends in order on either, and then raises it again, against whatever was there before.
            signal.signal(signum, lambda *_: None)
        server.run(sockets=[listener])
        error = pool.ended.exception() if pool.ended.done() else None
    if error is not None:
        print(f"reward service: {error}", file=sys.stderr, flush=True)
    return 1 if error else 0


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. ConfigError when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A service that was just ended leaves connections in TIME_WAIT, which are in nobody's way.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_longest_backlog())
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(
            "the reward service needs an address of this machine and a free port",
            seen=f"{host}:{port} ({getattr(error, 'strerror', None) or error})",
            action="choose another --host or --port",
        ) from None
    return listener


def _longest_backlog() -> int:
    """All that wait to be accepted may be accepted at once, before any can be turned away."""
    return at_most(_LONGEST_BACKLOG, share=_BACKLOG_SHARE)


def read_token(path: Path | None) -> str:
    """The token, from a file that nobody else can read, or without one from SLURM_RL_REWARD_TOKEN.

    Raises:
        ConfigError: there is none, or others can read the file.
    """
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
    else:
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise ConfigError(
                    "only you may read the token file",
                    seen=f"{path} ({path.stat().st_mode & 0o777:o})",
                    action=f"chmod 600 {path}",
                )
            token = path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError("the token file must be readable", seen=f"{path} ({error.strerror})") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "a reward service needs a token of printable ASCII without spaces",
            seen="none" if not token else "other characters",
            action=f"export {TOKEN_VARIABLE}=$(openssl rand -hex 16), or write one into a file of mode 0600",
        )
    return token


def read_answers(path: Path, prompt_key: str, answer_key: str) -> dict[str, str]:
    """Prompt, as its clients send it, to reference answer, for clients that send no labels.

    A list of messages that stands in a string (LMM-R1, OpenRLHF-M) stays that string; no image is looked for.
    """
    from slurm_rl.data.records import DataSource, read_records

    columns = ((prompt_key, "--prompt-key"), (answer_key, "--answer-key"))
    answers: dict[str, str] = {}
    for where, row in read_records(DataSource(name=str(path), columns=columns)):
        prompt, answer = row[prompt_key], row[answer_key]
        if not isinstance(answer, str):
            raise DataError(f"{where}: column {answer_key!r} must be a string", seen=repr(answer)[:80])
        answers[prompt if isinstance(prompt, str) else json.dumps(prompt)] = answer
    if not answers:
        raise DataError(f"{path}: --answers needs at least one row", seen="none")
    return answers


if __name__ == "__main__":
    sys.exit(main())
