"""Our reward service compared with a server like OpenRLHF-M's: completions per second, and the cost of hangs.

    python -m benchmarks.reward_service --items 2000 --workers 2

Both score the same completions with the same code (math-verify, and 0.5 for the format), for the same client. The other
server is a threaded HTTP server (like Flask's) that passes each item to a process pool and waits without a timeout, as
OpenRLHF-M's math_verifier does, or scores in its own process. A hang is an answer such as 9^(9^(9^9)), which a policy
may write at any time; a server is given up after --limit-s.
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from slurm_rl.config.reward import RewardConfig, RewardServiceConfig
from slurm_rl.errors import SlurmRLError
from slurm_rl.rewards.client import RewardClient
from slurm_rl.rewards.results import RewardItem
from slurm_rl.rewards.supervise import RewardServices

HANG = r"\boxed{9^{9^{9^9}}}"
THOUGHT = "We add the numbers one by one and check the sum twice, so that no carry is lost. " * 5


def build_items(count: int, hang_every: int | None) -> list[RewardItem]:
    """Build additions; every second answer is right, and one in `hang_every` hangs math-verify."""
    items = []
    for i in range(count):
        boxed = HANG if hang_every and i % hang_every == hang_every // 2 else rf"\boxed{{{2 * i + i % 2}}}"
        text = f"<think>{THOUGHT}</think><answer>${boxed}$</answer>"
        items.append(RewardItem(prompt=f"What is {i}+{i}? ", completion=text, answer=str(2 * i)))
    return items


def judge(completion: str, answer: str) -> tuple[float, float]:
    from slurm_rl.rewards.math_answer import score_math
    from slurm_rl.rewards.verifiers import score_format

    return score_math(completion, answer), score_format(completion, answer)


def serve_seed(num_workers: int) -> None:
    """Print the port, then serve forever; with 0 workers, score in this process."""
    pool = ProcessPoolExecutor(num_workers) if num_workers else None

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            tree = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            cut = [query[len(prompt) :] for query, prompt in zip(tree["query"], tree["prompts"], strict=True)]
            if pool is None:
                scores = [judge(*pair) for pair in zip(cut, tree["labels"], strict=True)]
            else:
                scores = [f.result() for f in [pool.submit(judge, *p) for p in zip(cut, tree["labels"], strict=True)]]
            body = {
                "rewards": [accuracy + 0.5 * form for accuracy, form in scores],
                "format_rewards": [form for _, form in scores],
                "acc_rewards": [accuracy for accuracy, _ in scores],
            }
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


@contextmanager
def seed_server(num_workers: int) -> Iterator[tuple[list[str], None]]:
    argv = [sys.executable, "-m", "benchmarks.reward_service", "--serve-seed", str(num_workers)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            yield [f"http://127.0.0.1:{int(process.stdout.readline())}/get_reward"], None
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with its pool, whose processes may hang


@contextmanager
def our_service(num_workers: int, num_replicas: int, timeout_s: float) -> Iterator[tuple[list[str], str]]:
    config = RewardConfig(
        verifiers={"math": 1.0, "format": 0.5},
        num_workers=num_workers,
        timeout_s=timeout_s,
        service=RewardServiceConfig(num_replicas=num_replicas),
    )
    with tempfile.TemporaryDirectory() as folder, RewardServices(config, Path(folder), Path(folder)) as services:
        yield services.urls, services.token


def measure(
    urls: Sequence[str], token: str | None, items: Sequence[RewardItem], batch: int, args: argparse.Namespace
) -> str:
    """Return the columns of a row: completions per second, median and 99th percentile of a request, requests without an
    answer.
    """
    settings = RewardServiceConfig(
        items_per_request=batch, num_connections=args.clients, request_timeout_s=args.limit_s, deadline_s=args.limit_s
    )
    times: list[float] = []
    num_answered = 0
    with RewardClient(settings, lambda: urls, token) as client, ThreadPoolExecutor(args.clients) as clients:
        client.score(build_items(2 * args.workers, None))  # workers import sympy at their first item

        def request(first: int) -> int:
            started = time.perf_counter()
            try:
                results = client.score(items[first : first + batch])
            except SlurmRLError:
                return 0
            times.append(time.perf_counter() - started)
            return len(results)

        started = time.perf_counter()
        futures = [clients.submit(request, first) for first in range(0, len(items), batch)]
        for future in futures:
            try:
                num_answered += future.result(max(0.0, started + args.limit_s - time.perf_counter()))
            except Late:
                future.cancel()
        took_s = time.perf_counter() - started
    lost = len(items) - num_answered
    ends = sorted(times)
    tail = ends[int(len(ends) * 0.99)] if ends else float("nan")
    middle = statistics.median(ends) if ends else float("nan")
    return f"{num_answered / took_s:.0f} | {middle * 1e3:.0f} | {tail * 1e3:.0f} | {lost or 'none'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2, help="processes of each server that has a pool")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--timeout-s", type=float, default=1.0, help="our deadline of one item")
    parser.add_argument("--limit-s", type=float, default=60.0)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64], help="completions in one request")
    parser.add_argument("--hangs", type=float, nargs="+", default=[0.0, 0.01], help="share of completions that hang")
    parser.add_argument("--serve-seed", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_seed is not None:
        serve_seed(args.serve_seed)
        return
    servers: dict[str, Callable[[], Any]] = {
        "seed's form, one process": lambda: seed_server(0),
        f"seed's form, pool of {args.workers}": lambda: seed_server(args.workers),
        f"ours, {args.workers} workers": lambda: our_service(args.workers, 1, args.timeout_s),
        f"ours, 2 replicas of {args.workers}": lambda: our_service(args.workers, 2, args.timeout_s),
    }
    print("| server | items a request | hangs | completions/s | median ms | 99 % ms | without an answer |")
    print("|---|---|---|---|---|---|---|")
    for batch, hangs in itertools.product(args.batches, args.hangs):
        hang_every = round(1 / hangs) if hangs else None
        for name, start in servers.items():
            with start() as (urls, token):
                row = measure(urls, token, build_items(args.items, hang_every), batch, args)
            print(f"| {name} | {batch} | {hangs:.0%} | {row} |", flush=True)


if __name__ == "__main__":
    main()
