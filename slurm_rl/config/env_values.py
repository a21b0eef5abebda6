"""What presets may read of the environment: `${oc.env:SCRATCH}`, but no secret.

A composed config stands in config.yaml, plan.json, the report and W&B, for everybody who may read one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slurm_rl.errors import ConfigError

_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|(^|_)(KEY|AUTH|COOKIE|DSN)S?(_|$)|_(PAT|PWD|PW)$", re.IGNORECASE
)


def names_a_secret(variable: str) -> bool:
    """Whether a variable of this name holds one, by the words that such names have.

    >>> [names_a_secret(name) for name in ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "PWD", "KEYBOARD")]
    [True, True, False, False]
    """
    return bool(_SECRET.search(variable))


@contextmanager
def no_secrets_in_configs() -> Iterator[None]:
    """Within it `oc.env` refuses secrets; the error of OmegaConf around it holds ours."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    def read_variable(name: str, *default: Any) -> Any:
        if names_a_secret(name):
            raise ConfigError(
                "a config must hold no secret, since it is written into the run directory and shown",
                seen=f"${{oc.env:{name}}}",
                action="leave it in the environment: what a run needs (HF_TOKEN, WANDB_API_KEY, a bucket's) is handed "
                "on by name",
            )
        return oc.env(name, *default)

    OmegaConf.register_new_resolver("oc.env", read_variable, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
