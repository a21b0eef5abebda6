"""Read and score files with verl's released reader and scorers in a separate process; print the result as JSON.

    verl_data.py <release> <folder with a tokenizer> <parquet>=<template of a right answer> ...

Only the packages' __init__.py, which import training code, are skipped.
"""

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any


def open_packages(release: str) -> None:
    for name in ("verl", "verl.utils", "verl.utils.dataset"):
        package = ModuleType(name)
        package.__path__ = [f"{release}/{name.replace('.', '/')}"]
        sys.modules[name] = package


def main() -> None:
    release, tokenizer_folder, *files = sys.argv[1:]
    open_packages(release)
    sys.modules["verl.utils.tokenizer"] = SimpleNamespace(  # type: ignore[assignment]
        build_multimodal_processor_inputs=None, normalize_token_ids=list
    )
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    print(json.dumps([read(*file.split("=", 1), tokenizer) for file in files]))


def read(file: str, template: str, tokenizer: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.utils.reward_score import default_compute_score

    config = OmegaConf.create({"max_prompt_length": 400, "filter_overlong_prompts_workers": 1, "return_raw_chat": True})
    rows = RLHFDataset(file, tokenizer, config)
    scores = []
    for row in rows.dataframe:
        truth = row["reward_model"]["ground_truth"]
        answers = [template.replace("ANSWER", text) for text in (truth, f"{truth}7")]
        scores.append([default_compute_score(row["data_source"], text, truth, row["extra_info"]) for text in answers])
    first = rows[0]
    return {"rows": len(rows), "scores": scores, "raw_prompt": first["raw_prompt"], "index": first["index"]}


if __name__ == "__main__":
    main()
