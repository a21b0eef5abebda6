"""A key an episode: HMAC of a secret of this process and the episode's name, so that none reaches another's.

The secret is in no file: no key outlives the trainer that the episodes are of.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

_PREFIX = "slurm-rl"


@dataclass(frozen=True)
class KeyRing:
    """Makes keys, and reads from them whose they are."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def key(self, episode: str) -> str:
        """What its program sends as `Authorization: Bearer <key>`."""
        return f"{_PREFIX}_{episode}_{self._sign(episode)}"

    def read(self, header: str | None) -> str | None:
        """The name of the episode; None where nobody has made such a key.

        >>> ring = KeyRing(b"secret")
        >>> ring.read(f"Bearer {ring.key('3.1')}"), ring.read("Bearer slurm-rl_3.1_ab"), ring.read(None)
        ('3.1', None, None)
        """
        kind, _, key = (header or "").partition(" ")
        episode, _, sign = key.strip().removeprefix(f"{_PREFIX}_").rpartition("_")
        is_ours = hmac.compare_digest(sign.encode(), self._sign(episode).encode())
        return episode if is_ours and episode and kind.lower() == "bearer" else None

    def _sign(self, episode: str) -> str:
        return hmac.new(self.secret, episode.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
