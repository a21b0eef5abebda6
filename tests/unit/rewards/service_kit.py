import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from slurm_rl.config.reward import RewardConfig, RewardServiceConfig
from slurm_rl.rewards.results import RewardItem
from slurm_rl.rewards.supervise import RewardServices

ODD_FUNCTION = f"{Path(__file__).with_name('odd_function.py')}:reward_func"


def odd_config(**service: Any) -> RewardConfig:
    """Return a config with two workers that obey completions; an item's reward is its answer / 8."""
    return RewardConfig(num_workers=2, timeout_s=1.0, function=ODD_FUNCTION, service=RewardServiceConfig(**service))


def start_services(tmp_path: Path, config: RewardConfig, events: list[str] | None = None) -> RewardServices:
    def report(kind: str, **fields: Any) -> None:
        if events is not None:
            events.append(kind)

    return RewardServices(config, tmp_path / "secrets", tmp_path / "logs", report=report)


def build_items(count: int, deeds: dict[int, str] | None = None) -> list[RewardItem]:
    return [
        RewardItem(prompt=f"prompt {i}: ", completion=(deeds or {}).get(i, f"answer {i}"), answer=str(i))
        for i in range(count)
    ]


Answer = tuple[int, Any]
"""HTTP status and body: bytes unchanged, anything else as JSON."""


@contextmanager
def scripted_server(answer: Callable[[dict[str, Any]], Answer]) -> Iterator[str]:
    """Serve scripted answers as a foreign reward service; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            tree = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, body = answer(tree)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/get_reward"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
