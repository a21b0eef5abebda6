"""An option that this Slurm does not have yet is refused by its name."""

import pytest

from slurm_rl.errors import SubmitError
from slurm_rl.launch.slurm.admission import check_version
from slurm_rl.launch.slurm.partitions import Version, parse_version


@pytest.mark.parametrize(
    ("text", "version"),
    [("slurm-wlm 22.05.8", (22, 5)), ("slurm 25.11.7", (25, 11)), ("slurm 23.02.6-1", (23, 2)), ("slurm next", None)],
)
def test_the_version_is_found(text: str, version: Version | None) -> None:
    assert parse_version(text) == version


def test_what_is_too_old_is_named() -> None:
    with pytest.raises(SubmitError, match=r"--segment is an option of Slurm 24\.05 and later; got 23\.11"):
        check_version({"nodes": 4, "segment": 2}, (23, 11))
    with pytest.raises(SubmitError, match=r"--requeue=expedite is an option of Slurm 25\.11"):
        check_version({"requeue": "expedite"}, (24, 11))
    with pytest.raises(SubmitError, match=r"20\.11 or later.*got 19\.05"):
        check_version({}, (19, 5))


def test_what_it_has_is_taken() -> None:
    check_version({"segment": 2, "requeue": True}, (24, 5))
    check_version({"requeue": "expedite", "spread-segments": True}, (25, 11))
