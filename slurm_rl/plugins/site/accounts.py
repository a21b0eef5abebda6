"""Who pays: the user's associations, by what sacctmgr prints. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SACCTMGR_FORMAT = "DefaultAccount,Account,Partition,QOS,DefaultQOS"
"""Of `sacctmgr -nP show user <name> withassoc`."""


@dataclass(frozen=True)
class Association:
    """An account that the user may charge."""

    account: str
    is_default: bool
    partition: str | None
    """Where it counts; None: everywhere."""
    qos: tuple[str, ...]
    """Those that its jobs may have."""
    default_qos: str | None


def parse_associations(output: str) -> list[Association]:
    """Read them, the default account first; a line of another shape is passed over.

    >>> parse_associations("lab|lab||normal,long|normal\\nlab|other|gpu|normal|\\n")[1]
    Association(account='other', is_default=False, partition='gpu', qos=('normal',), default_qos=None)
    """
    rows = [line.split("|") for line in output.splitlines()]
    found = [
        Association(account, account == default, partition or None, tuple(filter(None, qos.split(","))), first or None)
        for default, account, partition, qos, first in (row for row in rows if len(row) == 5)
        if account
    ]
    return sorted(found, key=lambda one: not one.is_default)


def list_accounts(associations: Sequence[Association], partition: str | None = None) -> list[str]:
    """Their names, the default one first.

    Args:
        partition: only those that count there.
    """
    fit = [one for one in associations if partition is None or one.partition in (None, partition)]
    return list(dict.fromkeys(one.account for one in fit))


def choose_qos(associations: Sequence[Association], account: str | None, allowed: str) -> str | None:
    """A QOS that must be said, since the partition does not take the default one; None where none must be.

    Args:
        allowed: AllowQos of the partition.

    >>> one = Association("lab", True, None, ("normal", "gpu"), "normal")
    >>> choose_qos([one], "lab", "gpu,long"), choose_qos([one], "lab", "ALL")
    ('gpu', None)
    """
    names = set() if allowed in ("ALL", "(null)", "") else set(allowed.split(","))
    own = [qos for one in associations if one.account == account for qos in one.qos]
    default = next((one.default_qos for one in associations if one.account == account and one.default_qos), None)
    if not names or default in names or (default is None and "normal" in names):
        return None
    return next((qos for qos in own if qos in names), None)
