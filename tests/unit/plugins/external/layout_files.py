"""Checkpoint folders of other trainers, after a complete save and an interrupted one."""

from pathlib import Path

Files = dict[str, str]
"""Paths below the checkpoint folder, with their contents."""


def whole(layout: str, step: int) -> Files:
    """Return the files of a complete save of one step."""
    return {
        "steps": {f"step-{step}/x": ""},
        "verl": {f"global_step_{step}/data.pt": "x", "latest_checkpointed_iteration.txt": str(step)},
        "openrlhf": {f"_actor/global_step{step}/x": "", "_actor/latest": f"global_step{step}"},
        "maxtext": {f"run/checkpoints/{step}/items/x": ""},
        "trl": {f"checkpoint-{step}/trainer_state.json": '{"global_step": 1}'},
        "nemo_rl": {f"step_{step}/training_info.json": "{}"},
        "prime_rl": {
            f"run/checkpoints/step_{step}/trainer/.metadata": "",
            f"run/checkpoints/step_{step}/orchestrator/progress.pt": "",
        },
        "skyrl": {f"global_step_{step}/trainer_state.pt": "x", "latest_ckpt_global_step.txt": str(step)},
        "slime": {f"iter_{step:07}/.metadata": "x", "latest_checkpointed_iteration.txt": str(step)},
        "open_instruct": {f"state/global_step{step}/x": "", "state/latest": f"global_step{step}"},
        "torchtitan": {f"checkpoint/step-{step}/.metadata": ""},
    }[layout]


def half(layout: str, step: int) -> Files:
    """Return the files of an interrupted save."""
    return {
        "steps": {f".step-{step}.tmp/x": ""},
        "verl": {f"global_step_{step}/actor/x": ""},
        "openrlhf": {f"_actor/global_step{step}/x": ""},
        "maxtext": {f"run/checkpoints/{step}.orbax-checkpoint-tmp-17/items/x": ""},
        "trl": {f"checkpoint-{step}/model.safetensors": ""},
        "nemo_rl": {f"tmp_step_{step}/training_info.json": "{}"},
        "prime_rl": {f"run/checkpoints/step_{step}/trainer/.metadata": ""},
        "skyrl": {f"global_step_{step}/policy/x": ""},
        "slime": {f"iter_{step:07}/__0_0.distcp": ""},
        "open_instruct": {f"state/global_step{step}/x": ""},
        "torchtitan": {f"checkpoint/step-{step}/__0_0.distcp": ""},
    }[layout]


def write(root: Path, files: Files) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
