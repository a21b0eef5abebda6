"""Budgets of size and structure. To raise a limit, give the reason at the number."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from tests.layers import LAYERS, PACKAGE, cycles, lines_of, modules, package_of, upward_imports
from tests.lock import ROOT

MAX_LINES = 66_700
"""Lines of slurm_rl. Raised from 59,680 for project folders, local GPUs, metric exporters, judges, successor jobs and
evaluation jobs, most of which are plugins; then for the estimate of a step's time, shapes of real models, longer
contexts and adapters in the engine's memory; then for device meshes, context parallelism,
the backward of the chunked head and adapters on experts."""
MAX_PLUGIN_LINES = 10_500
"""Lines of slurm_rl/plugins, including the 1,000 lines of their verbs. Raised from 7,280 for the same options."""
MAX_TEST_LINES = 61_000
"""Lines of tests. Raised from 52,740 for the tests of the same work, then for a stand-in of a CUDA machine
(tests/fake_gpu) and for device meshes."""
MAX_FILE_LINES = 300
"""Lines of the longest file."""
MAX_CLOSURE_MODULES, MAX_CLOSURE_LINES = 120, 15_010
"""Modules of slurm_rl, and their lines, that `import slurm_rl.trainers.grpo.run_grpo` loads. Raised from 15,000
lines, since every run reads and plans the keys of `model.lora`."""
MAX_TOP_LEVEL, MAX_LAYERS = 16, 6
MAX_CYCLES = 0
"""Groups of files that import each other in a circle; late imports count."""
MAX_DIALECT = 2.0
"""Dialect words per 1,000 words of docstrings, comments and docs; other trainers have 0.9 to 1.5."""
MAX_ALGORITHM_FILES = 4
"""Files of code and presets that mention distillation or its teacher."""

HOPS = (
    "rollout.vllm.engine:VLLMEngine.generate",
    "rollout.sampling:Chunk.send",
    "rollout.sampling:Sampler.arrivals",
    "rollout.sampling:SingleTurn.finish",
    "trainers.grpo.batch_queue:BatchQueue.take",
    "trainers.grpo.trainer:GRPOTrainer.grpo_step",
    "trainers.grpo.learner:Learner.learn",
    "algorithms.credit:build_train_sequences",
    "workers.train_workers:WorkerGroup.train",
    "workers.train_workers:PolicyWorker.train",
    "models.policy:PolicyEngine.train",
    "algorithms.policy_loss:build_policy_loss",
)
"""Calls that hand a completion of a plain run on from its engine to its loss. Helpers of a class are not counted."""
MAX_HOPS, MAX_HOP_FILES = 12, 9
SAVE = (
    "trainers.grpo.trainer:GRPOTrainer.save",
    "trainers.grpo.trainer_state:RunSaver.save",
    "workers.train_workers:WorkerGroup.call",
    "workers.train_workers:TrainWorker.save",
    "models.policy:PolicyEngine.save",
)
"""Calls of a save from the loop to the thread that writes a rank's file."""
MAX_SAVE_CALLS = 5

DIALECT = [
    r"\bwhat\b",
    r"\b(?:who|whoever|whose|whom)\b",
    r"\balone\b",
    r"\b(?:told|tells|said|says|asked)\b",
    r"\b(?:nobody|somebody|nothing else)\b",
    r"\b(?:gone|goes on|went on|go on)\b",
    r"\b(?:stands|stood|beside)\b",
]
FRAGMENT = re.compile(r'^\s*(?:"{3})?(?:Of|Whose|Who|By|As|So|Its|For) [^.]*\.\s*$', re.MULTILINE)
DIALECT_NAME = re.compile(r"^test_(a|an|the|it)_|_(what|who|whose|told|said|asked|nobody|alone|gone|goes_on)(_|$)")
MAX_TEST_NAME = 72
"""Characters of the name of a test."""
PROSE = ("tests", "benchmarks", "examples")
LOADED = """
import sys, slurm_rl.trainers.grpo.run_grpo
files = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "slurm_rl"]
print(len(files), sum(len(open(file, "rb").readlines()) for file in files))
"""


def docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def prose_of(path: Path) -> str:
    """Return docstrings and comments of a Python file, or a page without its code blocks."""
    text = path.read_text()
    if path.suffix == ".md":
        return re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join([*docstrings(ast.parse(text)), *comments])


def dialect_per_1000(paths: Iterable[Path]) -> float:
    texts = [prose_of(path) for path in paths]
    counts = [len(re.findall(word, text, re.IGNORECASE)) for text in texts for word in DIALECT]
    counts += [len(FRAGMENT.findall(text)) for text in texts]
    return 1000 * sum(counts) / sum(len(text.split()) for text in texts)


def total_lines(paths: Iterator[Path]) -> int:
    return sum(map(lines_of, paths))


def test_package_stays_within_line_budget() -> None:
    assert total_lines(iter(modules().values())) <= MAX_LINES
    assert total_lines(path for path in modules().values() if package_of(path) == "plugins") <= MAX_PLUGIN_LINES
    assert max(map(lines_of, modules().values())) <= MAX_FILE_LINES


def test_tests_stay_within_line_budget() -> None:
    assert total_lines(ROOT.glob("tests/**/*.py")) <= MAX_TEST_LINES


def test_plain_run_does_not_import_options() -> None:
    out = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    loaded, lines = map(int, out.split())
    assert loaded <= MAX_CLOSURE_MODULES and lines <= MAX_CLOSURE_LINES, out


def test_layers_and_names_stay_few() -> None:
    names = {path.name for path in PACKAGE.iterdir() if path.suffix in ("", ".py") and path.name != "__pycache__"}
    assert len(names - {"__init__.py", "__main__.py"}) <= MAX_TOP_LEVEL
    assert len(LAYERS) <= MAX_LAYERS


def test_files_have_no_import_cycles() -> None:
    assert len(cycles()) <= MAX_CYCLES, cycles()


def test_no_layer_imports_plugin() -> None:
    assert upward_imports() == []


def test_prose_stays_plain() -> None:
    assert dialect_per_1000([*modules().values(), *ROOT.glob("docs/*.md"), ROOT / "README.md"]) <= MAX_DIALECT
    assert dialect_per_1000(path for name in PROSE for path in ROOT.glob(f"{name}/**/*.py")) <= MAX_DIALECT


def test_names_of_tests_stay_plain() -> None:
    names = {name for path in ROOT.glob("tests/**/*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert [name for name in names if len(name) > MAX_TEST_NAME or DIALECT_NAME.search(name)] == []


def test_algorithm_needs_few_files() -> None:
    files = [*PACKAGE.rglob("*.py"), *ROOT.glob("conf/**/*.yaml")]
    found = [path for path in files if re.search("distill|teacher", path.read_text(), re.IGNORECASE)]
    assert len(found) <= MAX_ALGORITHM_FILES, found


def test_completion_reaches_loss_in_few_calls() -> None:
    files = {hop.partition(":")[0] for hop in HOPS}
    assert len(HOPS) <= MAX_HOPS and len(files) <= MAX_HOP_FILES
    for hop in HOPS:
        assert any(_calls(caller, hop) for caller in HOPS), f"no function of HOPS calls {hop}"


def test_save_reaches_file_in_few_calls() -> None:
    assert len(SAVE) <= MAX_SAVE_CALLS
    for caller, called in pairwise(SAVE):
        assert _calls(caller, called), f"{caller} does not call {called}"


def _calls(caller: str, called: str) -> bool:
    """Return whether the file of `caller` calls a function or method named as `called`."""
    module, _, name = caller.partition(":")
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())
    owner = name.partition(".")[0]
    assert any(isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == owner for node in tree.body), caller
    function = called.partition(":")[2].rpartition(".")[2]
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return function in names
