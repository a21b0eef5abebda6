"""Run OpenRLHF's released reward client or server in a separate process.

    openrlhf_process.py <release> ask-flat <url>       openrlhf/utils/remote_rm_utils.py of 0.8
    openrlhf_process.py <release> ask-dotted <url>     openrlhf/utils/agent.py of 0.11
    openrlhf_process.py <release> serve <port>         openrlhf/cli/serve_rm.py

Only the packages' __init__.py, which import GPU libraries, are skipped, and the reward model is replaced by one that
returns the number of tokens.
"""

import asyncio
import json
import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

PROMPT = "<|im_start|>user\n3+4?<|im_end|>\n<|im_start|>assistant\n"
ANSWERS = ["<think>a</think><answer>$7$</answer>", "<think>a</think><answer>$8$</answer>", "$7$"]


def open_packages(release: str) -> None:
    for name in ("openrlhf", "openrlhf.utils", "openrlhf.models"):
        package = ModuleType(name)
        package.__path__ = [f"{release}/{name.replace('.', '/')}"]
        sys.modules[name] = package


def ask_flat(url: str) -> Any:
    from openrlhf.utils.remote_rm_utils import remote_rm_fn_ray

    queries = [f"{PROMPT}{answer}<|im_end|>" for answer in ANSWERS]
    # As a Ray task this function would run in another process.
    return remote_rm_fn_ray._function(url, queries, [PROMPT] * len(queries), ["7"] * len(queries))


def ask_dotted(url: str) -> Any:
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    executor = SingleTurnAgentExecutor(url)
    params = SimpleNamespace(max_tokens=200, logprobs=None)

    async def ask(answer: str) -> Any:
        return await executor.execute(PROMPT, "7", params, 400, Tokenizer(), Engine(f"{answer}<|im_end|>"))

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*map(ask, ANSWERS))

    found = asyncio.run(ask_all())
    return {"rewards": [one["reward"][0] for one in found], "scores": [one["scores"][0] for one in found]}


class Tokenizer:
    """One token per character."""

    def __call__(self, text: str, **_: Any) -> Any:
        import torch

        return {"input_ids": torch.tensor([[ord(character) for character in text]])}

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(map(chr, ids))


class Engine:
    """An engine with a constant completion."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def generate(self, *_: Any, **__: Any) -> Any:
        output = SimpleNamespace(token_ids=[ord(c) for c in self.text], text=self.text, finish_reason="stop")
        return SimpleNamespace(outputs=[SimpleNamespace(**vars(output), logprobs=None)])


def serve(release: str, port: str) -> None:
    import torch

    class Scorer:
        device = "cpu"

        def eval(self) -> None: ...

        def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
            return attention_mask.sum(-1).float()

    def tokenize(texts: list[str], **_: Any) -> dict[str, Any]:
        longest = max(map(len, texts))
        mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])
        return {"input_ids": mask, "attention_mask": mask}

    sys.modules["openrlhf.models"].get_llm_for_sequence_regression = lambda *_, **__: Scorer()  # type: ignore[attr-defined]
    sys.modules["openrlhf.utils"].get_tokenizer = lambda *_, **__: tokenize  # type: ignore[attr-defined]
    sys.argv = ["serve_rm", "--port", port, "--host", "127.0.0.1"]
    runpy.run_path(f"{release}/openrlhf/cli/serve_rm.py", run_name="__main__")


def main() -> None:
    release, mode, where = sys.argv[1:]
    open_packages(release)
    if mode == "serve":
        serve(release, where)
    else:
        print(json.dumps({"ask-flat": ask_flat, "ask-dotted": ask_dotted}[mode](where)))


if __name__ == "__main__":
    main()
