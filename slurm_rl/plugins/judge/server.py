"""A judge's model in the job: vLLM's OpenAI-compatible server on an inherited socket, with a key on every path."""

from __future__ import annotations

import argparse
import hmac
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from slurm_rl.config.judge import SERVER_SHARE, JudgeServerConfig
from slurm_rl.node.processes import die_with_parent
from slurm_rl.rewards.program import Program

KEY = "SLURM_RL_JUDGE_KEY"
_CPU_CACHE_BYTES = 2**30
"""Default KV cache on a CPU, which vLLM fills with zeros."""


def build_program(server: JudgeServerConfig, key: str, num_gpus: int) -> Program:
    """Return this module as the program of a supervisor; the key reaches the server by its environment."""
    words = ("slurm_rl.plugins.judge.server", *build_words(server, num_gpus))
    return Program("judge", "/v1", words, {KEY: key}, server.start_timeout_s)


def build_words(server: JudgeServerConfig, num_gpus: int) -> list[str]:
    """Return the arguments of `vllm serve`. `server.vllm_args` take precedence.

    >>> build_words(JudgeServerConfig(model="m", vllm_args={"enforce_eager": False, "max_num_seqs": 8}), 2)[-3:]
    ['--distributed-executor-backend=mp', '--no-enforce-eager', '--max-num-seqs=8']
    """
    arguments: dict[str, Any] = {"model": server.model}
    if server.max_model_len is not None:
        arguments["max_model_len"] = server.max_model_len
    if num_gpus:
        arguments |= {"gpu_memory_utilization": SERVER_SHARE, "tensor_parallel_size": num_gpus}
        # Child processes: the plan chose the GPUs, and Ray does not manage them.
        arguments |= {"distributed_executor_backend": "mp"} if num_gpus > 1 else {}
    else:
        arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": _CPU_CACHE_BYTES}
    return [_word(name, value) for name, value in (arguments | server.vllm_args).items()]


def _word(name: str, value: Any) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={value if isinstance(value, str | int | float) else json.dumps(value)}"


class RequireKey:
    """ASGI middleware that rejects every request without the key; vLLM's own leaves paths such as /invocations open."""

    def __init__(self, app: Any) -> None:
        self._app, self._expected = app, f"Bearer {os.environ[KEY]}".encode()

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        sent = dict(scope.get("headers") or ()).get(b"authorization", b"")
        if scope["type"] == "lifespan" or hmac.compare_digest(sent, self._expected):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close"})


def main(words: list[str]) -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="vLLM's server of a judge on an inherited socket.")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of an inherited listening socket")
    parser.add_argument("--parent", type=int, required=True, help="process id; the server exits with that process")
    own, rest = parser.parse_known_args(words)
    die_with_parent(signal.SIGKILL, own.parent)
    import uvloop
    from vllm.entrypoints.launchers.api_server.entry import run_server_worker
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(rest)
    listener = socket.socket(fileno=own.fd)
    args.host, args.port = listener.getsockname()[:2]
    args.middleware, args.disable_uvicorn_access_log = ["slurm_rl.plugins.judge.server.RequireKey"], True
    validate_parsed_serve_args(args)
    uvloop.run(run_server_worker(f"http://{args.host}:{args.port}", listener, args))


if __name__ == "__main__":
    main(sys.argv[1:])
