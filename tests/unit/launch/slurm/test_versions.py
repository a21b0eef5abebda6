import pytest

from slurm_rl.errors import SubmitError
from slurm_rl.launch.slurm.admission import check_version


def test_old_version_is_named() -> None:
    with pytest.raises(SubmitError, match=r"--segment is an option of Slurm 24\.05 and later; got 23\.11"):
        check_version({"nodes": 4, "segment": 2}, (23, 11))
    with pytest.raises(SubmitError, match=r"--requeue=expedite is an option of Slurm 25\.11"):
        check_version({"requeue": "expedite"}, (24, 11))
    with pytest.raises(SubmitError, match=r"20\.11 or later.*got 19\.05"):
        check_version({}, (19, 5))


def test_supported_version_is_accepted() -> None:
    check_version({"segment": 2, "requeue": True}, (24, 5))
    check_version({"requeue": "expedite", "spread-segments": True}, (25, 11))
