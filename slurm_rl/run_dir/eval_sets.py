"""Results of evaluation sets, read from the keys `set/<name>/<key>` of metrics.jsonl. Standard library only."""

from collections.abc import Iterable, Iterator, Mapping

from slurm_rl.run_dir.jsonl import Row, read_rows
from slurm_rl.run_dir.run_dir import RunDir

SetResult = dict[str, float]
"""`step` and the values of one set at that step, by key: `avg@4`, `avg@4_error`, `pass@2`, `failed`, ..."""
_PREFIX = "set/"


def read_results(rows: Iterable[Row]) -> dict[str, list[SetResult]]:
    """Return the results of each set, oldest first."""
    found: dict[str, list[SetResult]] = {}
    for row in rows:
        of_row: dict[str, SetResult] = {}
        for key, value in row.items():
            if key.startswith(_PREFIX):
                name, _, short = key.removeprefix(_PREFIX).partition("/")
                of_row.setdefault(name, {"step": row["step"]})[short] = value
        for name, result in of_row.items():
            found.setdefault(name, []).append(result)
    return found


def list_evals(run: RunDir) -> dict[int, RunDir]:
    """Return the evaluations of eval.on_checkpoint by the step of their checkpoint, ascending."""
    found = {int(path.name.removeprefix("step-")): RunDir(path) for path in run.evals.glob("step-*[0-9]")}
    return dict(sorted(found.items()))


def read_eval_rows(run: RunDir) -> list[Row]:
    """Return the rows of these evaluations, at the steps of the checkpoints."""
    return [{**row, "step": step} for step, one in list_evals(run).items() for row in read_rows(one.metrics)]


def read_metrics(run: RunDir) -> list[Row]:
    """Return the rows of metrics.jsonl and of the evaluations of its checkpoints."""
    rows, own = read_rows(run.metrics), read_eval_rows(run)
    return sorted([*rows, *own], key=lambda row: row["step"]) if own else rows


def find_average(result: Mapping[str, float]) -> str | None:
    """Return the key of the mean score, such as `avg@4`; None if every sample failed."""
    return next((key for key in result if key.startswith("avg@") and not key.endswith("_error")), None)


def describe_result(result: Mapping[str, float]) -> str:
    """Return one result as text.

    >>> describe_result({"step": 0, "avg@2": 0.5, "avg@2_error": 0.1, "pass@2": 0.75, "prompts": 8.0, "failed": 1.0})
    'avg@2 0.500 ± 0.100, pass@2 0.750, 8 prompts, 1 failed'
    """
    return ", ".join(_parts(result))


def describe_sets(sets: Mapping[str, Mapping[str, SetResult | None]]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each set of a summary; a set measured twice shows the change of its mean score."""
    for name, sides in sets.items():
        before, after = sides["before"], sides["after"]
        if before is not None and after is not None and (key := find_average(before)) is not None:
            yield name, f"{key} {before[key]:.3f} -> {describe_result(after).removeprefix(f'{key} ')}"
        elif (result := after or before) is not None:
            yield name, describe_result(result)


def _parts(result: Mapping[str, float]) -> Iterator[str]:
    for key, value in result.items():
        if "@" in key and not key.endswith("_error"):
            error = result.get(f"{key}_error")
            yield f"{key} {value:.3f}" + ("" if error is None else f" ± {error:.3f}")
    if "prompts" in result:
        yield f"{result['prompts']:.0f} prompts"
    yield f"{result.get('failed', 0.0):.0f} failed"
