import json
import pkgutil
import subprocess
import sys

import slurm_rl.plugins.report


def test_report_imports_without_heavy_libraries() -> None:
    names = [
        f"slurm_rl.plugins.report.{module.name}" for module in pkgutil.iter_modules(slurm_rl.plugins.report.__path__)
    ]
    script = f"""
import importlib, json, sys
for name in {names!r}: importlib.import_module(name)
heavy = {{"torch", "ray", "vllm", "tensorboard", "wandb", "rich", "numpy", "pygal"}}
print(json.dumps(sorted(heavy & set(sys.modules))))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert len(names) > 5
    assert json.loads(done.stdout) == []
