"""One key per episode: HMAC of a process secret and the episode's name. The secret is in no file, so that keys end with
the trainer.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

_PREFIX = "slurm-rl"


@dataclass(frozen=True)
class KeyRing:
    """Create and verify keys."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def key(self, episode: str) -> str:
        """Return the key for `Authorization: Bearer <key>`."""
        return f"{_PREFIX}_{episode}_{self._sign(episode)}"

    def read(self, header: str | None) -> str | None:
        """Return the name of the episode; None for an invalid key.

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
