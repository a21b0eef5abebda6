"""A stand-in for vLLM's server of a judge, on an inherited socket; a prompt `die` ends it once per folder."""

import argparse
import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from slurm_rl.config.reward import RewardConfig
from slurm_rl.plugins.judge.server import KEY, build_program
from slurm_rl.rewards.supervise import RewardServices


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        tree = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = tree["messages"][0]["content"]
        folder = Path(os.environ["KIT_FOLDER"])
        if (prompt == "die" and not (folder / "died").exists()) or prompt == "always die":
            (folder / "died").touch()
            os._exit(3)
        with (folder / f"served-{os.getpid()}").open("a") as file:
            file.write(f"{prompt}\n")
        message = {"role": "assistant", "content": "1"}
        self._answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def _answer(self, tree: dict[str, Any]) -> None:
        right = self.headers["Authorization"] == f"Bearer {os.environ[KEY]}"
        data = json.dumps(tree).encode()
        self.send_response(200 if right else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


def open_servers(folder: Path, config: RewardConfig, report: Callable[..., None]) -> RewardServices:
    """Return supervised servers that run this file in place of vLLM."""
    (folder / "logs").mkdir()
    program = build_program(config.judge.server, "sk-canary", 0)
    variables = {**program.variables, "PYTHONPATH": str(Path(__file__).parents[4]), "KIT_FOLDER": str(folder / "logs")}
    program = replace(program, words=("tests.unit.plugins.judge.server_kit",), variables=variables)
    return RewardServices(config, folder, folder / "logs", report=report, token="sk-canary", program=program)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int)
    own, _ = parser.parse_known_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=own.fd)
    print("stand-in is up", flush=True)
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
