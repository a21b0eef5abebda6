import subprocess
import sys
from pathlib import Path

from tests.unit.plugins.prepare.hub_server import COMMIT, Hub
from tests.unit.plugins.prepare.small_sets import gsm8k

_SCRIPT = """
import sys
from slurm_rl.config.data import DataConfig
from slurm_rl.errors import DataError
from slurm_rl.data.load_data import load_prompts
try:
    for revision in sys.argv[1:]:
        config = DataConfig(train="org/name", eval="org/name", input_key="question", revision=revision or None)
        split = load_prompts(config)
        print(revision, len(split.train), len(split.held_out), split.train[1].prompt)
except DataError as error:
    print("DataError", error)
"""


def load(env: dict[str, str], folder: Path, *revisions: str) -> list[str]:
    argv = [sys.executable, "-c", _SCRIPT, *revisions]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_hub_name_is_cached_for_offline_use(hub: Hub, own_env: dict[str, str], tmp_path: Path) -> None:
    files = gsm8k(test=[{"question": "What is 7?", "answer": "#### 7"}])
    hub.repos["datasets/org/name"] = {name.replace("main/", "data/"): data for name, data in files.items()}
    lines = [" 3 1 What is 1+1?", f"{COMMIT} 3 1 What is 1+1?"]
    *read, wrong = load(own_env, tmp_path, "", COMMIT, "v9")
    assert read == lines
    assert wrong.startswith("DataError data set org/name") and "v9" in wrong
    hub.log.clear()
    assert load({**own_env, "HF_HUB_OFFLINE": "1"}, tmp_path, "") == lines[:1]
    assert hub.log == []
