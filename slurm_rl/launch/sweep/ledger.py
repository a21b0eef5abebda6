"""The sweep directory: its runs, their overrides and their Slurm jobs.

    runs/addition-sweep-20261121-101500/
      sweep.json                 the ledger
      code/                      one snapshot of slurm_rl for all runs
      0/ 1/ 2/ ...               one run directory each; `code` in it is a link to the one above
      arrays/<n>/job.sh          a batch script for each array
      arrays/<n>/<index>         links: element of the array -> run directory

The state of a run is in its own directory; the ledger has only facts of the sweep.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_rl.errors import RunDirError
from slurm_rl.run_dir.run_dir import RunDir, read_json, write_json

LEDGER_VERSION = 1


class SweepDir:
    """Names of the files of one sweep. Making the object touches nothing on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.ledger = self.path / "sweep.json"
        self.code = self.path / "code"

    def run(self, index: int) -> RunDir:
        return RunDir(self.path / str(index))

    def array(self, number: int) -> Path:
        return self.path / "arrays" / str(number)

    @property
    def is_sweep(self) -> bool:
        return self.ledger.is_file()


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    index: int
    """Number of the run, and name of its directory."""
    overrides: tuple[str, ...]
    """All overrides of its config."""
    array_job: str | None = None
    """Slurm's id of the array; null on this machine, and until Slurm has taken it."""
    array_index: int | None = None
    """Index in the array."""


@dataclass(frozen=True)
class Ledger:
    """sweep.json."""

    name: str
    metric: str
    """Metric that `status` ranks by and that a sweeper optimizes."""
    smallest_first: bool
    """True if smaller values of the metric are better."""
    runs: tuple[SweepRun, ...] = ()


def save_ledger(sweep: SweepDir, ledger: Ledger) -> None:
    write_json(sweep.ledger, {"version": LEDGER_VERSION, **asdict(ledger)})


def load_ledger(sweep: SweepDir) -> Ledger:
    """Read sweep.json. Raises RunDirError if this is no sweep, or one of another version of slurm_rl."""
    if not sweep.is_sweep:
        raise RunDirError(
            "a sweep directory must contain sweep.json",
            seen=str(sweep.path),
            action="name a directory that `python -m slurm_rl -m ...` printed",
        )
    tree = read_json(sweep.ledger)
    if tree.pop("version", None) != LEDGER_VERSION:
        raise RunDirError(f"sweep.json must be of version {LEDGER_VERSION}", seen=str(sweep.ledger))
    runs = tuple(SweepRun(**{**run, "overrides": tuple(run["overrides"])}) for run in tree.pop("runs"))
    return Ledger(**tree, runs=runs)


def runs_of(sweep: SweepDir) -> list[RunDir]:
    """Return the run directories of a sweep in order."""
    return [sweep.run(run.index) for run in load_ledger(sweep).runs]


def swept_overrides(runs: Sequence[SweepRun]) -> list[dict[str, str]]:
    """Return key -> value of each run, for the keys that differ between runs.

    >>> swept_overrides([SweepRun(0, ("+cluster=a", "optim.lr=1")), SweepRun(1, ("+cluster=a", "optim.lr=2"))])
    [{'optim.lr': '1'}, {'optim.lr': '2'}]
    """
    split = [dict(_split(text) for text in run.overrides) for run in runs]
    keys = dict.fromkeys(key for values in split for key in values)
    swept = [key for key in keys if len({values.get(key) for values in split}) > 1]
    return [{key: values[key] for key in swept if key in values} for values in split]


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+"), value
