from pathlib import Path

import pytest

from tests.train.external.releases import unpack


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a subfolder for each release of OpenRLHF and verl."""
    root = tmp_path_factory.mktemp("releases")
    for name in ("dotted", "flat", "verl"):
        unpack(root, name)
    return root
