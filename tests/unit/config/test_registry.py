from typing import Any

import pytest

from slurm_rl.config import registry
from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.config.load import load_config
from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.config.tasks import TASKS
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import ConfigError

TABLES = {name: table for name, table in vars(registry).items() if name.isupper() and isinstance(table, dict)}
ALL: dict[str, dict[str, Any]] = {**TABLES, "TASKS": TASKS, "RUNTIMES": RUNTIMES, "LAUNCHERS": LAUNCHERS}


@pytest.mark.parametrize(("table", "name"), [(table, name) for table, rows in TABLES.items() for name in rows])
def test_entry_names_importable_function(table: str, name: str) -> None:
    assert callable(TABLES[table][name].load())


@pytest.mark.parametrize(
    "name",
    [
        *(row.objective for row in TASKS.values() if row.objective),
        *(row.wrap for row in RUNTIMES.values()),
        *(row.enter for row in RUNTIMES.values() if row.enter),
        *(row.maker for row in RUNTIMES.values() if row.image_suffix),
        *(row.launcher for row in LAUNCHERS.values()),
        *filter(None, (name for row in LAUNCHERS.values() for name in (row.allocation, row.options, row.sweep))),
    ],
)
def test_registry_paths_are_importable(name: str) -> None:
    assert callable(load_function(name))


@pytest.mark.parametrize(
    ("key", "table"),
    [
        ("algorithm.advantage", "ADVANTAGES"),
        ("algorithm.loss", "POLICY_LOSSES"),
        ("algorithm.correction.kind", "CORRECTIONS"),
        ("algorithm.kl.estimator", "KL_ESTIMATORS"),
        ("dpo.loss", "DPO_LOSSES"),
        ("dpo.divergence", "DIVERGENCES"),
        ("task", "TASKS"),
        ("container.runtime", "RUNTIMES"),
        ("cluster.launcher", "LAUNCHERS"),
    ],
)
def test_unknown_name_is_refused_with_known_ones(key: str, table: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([f"{key}=no_such"])
    assert f"{key}: must be one of" in str(caught.value) and "got 'no_such'" in str(caught.value)
    assert all(name in str(caught.value) for name in ALL[table])
