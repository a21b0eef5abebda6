"""Text of the files that `init` writes. Pure."""

import json
import random

from slurm_rl.cli.parser import PROGRAM

_NUM_ROWS = 1000
_EXPERIMENT = """\
# @package _global_
# Reverse numbers of four digits.
name: {name}

model:
  path: Qwen/Qwen2.5-1.5B-Instruct   # a name on the Hugging Face hub, or a folder

data:
  train: data/train.jsonl            # relative to the folder in which you run commands
  num_eval: 100                      # rows held out for evaluation
  max_prompt_tokens: 512
  system: Reverse the digits. Answer with the digits only.

reward:
  function: reward.py:score

rollout:
  max_tokens: 512

trainer:
  num_steps: 100
  prompts_per_step: 32
"""
_TINY = """\
# @package _global_
# The same with a tiny model that starts from random weights: minutes on two cores, without a download.
defaults:
  - {name}
  - /model/tiny_qwen3
  - _self_

data:
  # It knows digits and the equals sign, and no chats.
  system: null
  max_prompt_tokens: 5

rollout:
  max_tokens: 5

# A random model finds no answer: it first learns from the answers of the data.
warmup:
  num_steps: 60
  batch_size: 128
  optim:
    lr: 2.0e-3

optim:
  lr: 3.0e-4

trainer:
  num_steps: 40
"""
_REWARD = '''\
"""Reward of the run: it is called with one completion at a time."""


def score(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, float]:
    """Return the share of characters at the right position as reward, and whether all are right as score."""
    completion, answer = queries[0].removeprefix(prompts[0]), labels[0]
    right = sum(one == other for one, other in zip(completion, answer, strict=False))
    return {"rewards": right / max(len(completion), len(answer)), "scores": float(completion == answer)}
'''
_CLUSTERS = f"""\
Cluster presets. Called in the project folder on the login node, this writes `mysite.yaml` here, with the source of each
value:

    {PROGRAM} site --name mysite

Then `+cluster=mysite` selects it. By hand, start from a built-in preset:

    # @package _global_
    defaults:
      - nvidia_h100
      - _self_
    cluster:
      run_root: /shared/runs
      slurm:
        partition: gpu
        account: me
"""
_README = """\
# {name}

`conf/exp/{name}.yaml` is the experiment: model, data, reward, sizes. `reward.py` is its reward function, and
`data/train.jsonl` its data. `conf/cluster/` is for cluster presets. Run commands in this folder:

    {program} +exp={name}_tiny                 # try it with a tiny model on this machine
    {program} site --name mysite                # on a login node: write the preset of the cluster
    {program} plan +exp={name} +cluster=mysite  # check everything, start nothing
    {program} +exp={name} +cluster=mysite       # train
"""
_GITIGNORE = "runs/\nmultirun/\noutputs/\n__pycache__/\n"


def build_files(name: str) -> dict[str, str]:
    """Return path -> text of the files of a project."""
    return {
        f"conf/exp/{name}.yaml": _EXPERIMENT.format(name=name),
        f"conf/exp/{name}_tiny.yaml": _TINY.format(name=name),
        "conf/cluster/README.md": _CLUSTERS,
        "reward.py": _REWARD,
        "data/train.jsonl": "".join(f"{json.dumps(row)}\n" for row in build_rows()),
        "README.md": _README.format(name=name, program=PROGRAM),
        ".gitignore": _GITIGNORE,
    }


def build_rows() -> list[dict[str, str]]:
    """Return rows of a number and its reverse, the same in each call.

    >>> build_rows()[0]
    {'prompt': '7311=', 'answer': '1137'}
    """
    numbers = random.Random(0).sample(range(1000, 10_000), _NUM_ROWS)
    return [{"prompt": f"{number}=", "answer": str(number)[::-1]} for number in numbers]
