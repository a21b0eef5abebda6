"""Print the trainer throughput table; read it with `pytest -s`."""

import subprocess
import sys


def test_trainer_throughput_prints_row() -> None:
    words = [sys.executable, "-m", "benchmarks.trainer_throughput", "--shape", "0.5b", "1.5b", "--tokens", "16384"]
    done = subprocess.run([*words, "--gradient-checkpointing"], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    print("\n" + done.stdout)
    rows = [line.split("|") for line in done.stdout.splitlines()[2:]]
    assert [row[1].strip() for row in rows] == ["0.5b", "1.5b"]
    assert all(float(row[3]) > 0 and row[2].strip() != "CPU" for row in rows)
