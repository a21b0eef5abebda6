"""Process of the reward service: `python -m slurm_rl.rewards.service --config reward.json ...`.

A run starts it (supervise.py), or `python -m slurm_rl.rewards.server`. Heavy imports are late, because the worker
processes import this module.
"""

import argparse
import json
import os
import resource
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

TOKEN_VARIABLE = "SLURM_RL_REWARD_TOKEN"
_GRACE_S = 5
_BACKLOG = 2048


def main(words: list[str] | None = None) -> int:
    """Serve until SIGTERM. Return 0; 1 when the workers keep dying; 2 for bad input."""
    parser = argparse.ArgumentParser(description="Reward service for one RewardConfig, read from JSON.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of an inherited listening socket")
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True, help="process id; the service exits with that process")
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
    """Serve requests until SIGTERM or SIGINT (return 0), or until the workers keep dying (return 1)."""
    import uvicorn

    from slurm_rl.rewards.app import ServiceState, build_app

    max_body_bytes = int(config.service.max_body_mb * 1e6)
    with RewardPool(config) as pool:
        state = ServiceState(pool, token, max_body_bytes, failure_reward, answers)
        settings = uvicorn.Config(
            build_app(state),
            log_level="warning",
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            backlog=_BACKLOG,
            limit_concurrency=_connection_limit(),
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_GRACE_S,
        )
        server = uvicorn.Server(settings)
        pool.ended.add_done_callback(lambda _: setattr(server, "should_exit", True))
        host, port = listener.getsockname()[:2]
        print(f"reward service at http://{host}:{port}/get_reward, {config.num_workers} workers", flush=True)
        for signum in (signal.SIGTERM, signal.SIGINT):
            # uvicorn shuts down on the signal and then raises it again for the previous handler.
            signal.signal(signum, lambda *_: None)
        server.run(sockets=[listener])
        error = pool.ended.exception() if pool.ended.done() else None
    if error is not None:
        print(f"reward service: {error}", file=sys.stderr, flush=True)
    return 1 if error else 0


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 selects a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of the previous service may still be in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(
            "the reward service needs an address of this machine and a free port",
            seen=f"{host}:{port} ({getattr(error, 'strerror', None) or error})",
            action="choose another --host or --port",
        ) from None
    return listener


def _connection_limit() -> int:
    """Return half of this process's file descriptors; uvicorn answers further connections with status 503."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if soft == resource.RLIM_INFINITY else max(1, soft // 2)


def read_token(path: Path | None) -> str:
    """Return the token from `path`, which must have mode 0600, or from SLURM_RL_REWARD_TOKEN."""
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
    else:
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise ConfigError(
                    "the token file must be readable only by its owner",
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
    """Return reference answers by prompt, for clients that send no labels; a prompt stays as its client sends it."""
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
