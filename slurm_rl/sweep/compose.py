"""Composing the configs of a sweep: exactly Hydra's, at a fiftieth of its time.

Hydra composes in two steps: a defaults list from the choices of groups, then values set on the result, one
override after the other. The runs of a sweep share most of the first step, which is the slow one. So it is
done once for each choice of groups, and the second by Hydra's own function on a copy.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from hydra import compose as hydra_compose
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode

from slurm_rl.config.load import explain_hydra, resolve_tree


class Composer:
    """Composes any number of configs; lives within `open_hydra`.

    Args:
        extra: the overrides that `open_hydra` yields.
    """

    def __init__(self, extra: Sequence[str]) -> None:
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        self._loader = hydra.config_loader
        self._extra = list(extra)
        # With the site's presets in its search path, unlike the loader's own.
        _, self._repository = self._loader._parse_overrides_and_create_caching_repo("config", self._extra)
        self._parser = OverridesParser.create()
        self._parsed: dict[str, Override] = {}
        self._is_group: dict[str, bool] = {}
        self._bases: dict[tuple[str, ...], bytes] = {}

    def compose(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The tree that `slurm_rl.config.load.compose` makes of these overrides.

        Raises:
            ConfigError: as that one does.
        """
        with explain_hydra():
            parsed = [self._parse(text) for text in overrides]
            self._loader.validate_sweep_overrides_legal(parsed, run_mode=RunMode.RUN, from_shell=False)
            structural = tuple(item.input_line for item in parsed if self._is_structural(item))
            config = pickle.loads(self._base(structural))
            ConfigLoaderImpl._apply_overrides_to_config(
                [item for item in parsed if not self._is_structural(item)], config
            )
            return resolve_tree(config)

    def _parse(self, text: str) -> Override:
        if text not in self._parsed:
            self._parsed[text] = self._parser.parse_overrides([text])[0]
        return self._parsed[text]

    def _is_structural(self, override: Override) -> bool:
        """Whether Hydra gives it to the defaults list (or to its own config) and not to the values."""
        key = override.key_or_group
        if key not in self._is_group:
            self._is_group[key] = self._repository.group_exists(key)
        is_value = isinstance(override.value(), dict) or not self._is_group[key]
        return override.is_hydra_override() or not is_value

    def _base(self, structural: tuple[str, ...]) -> bytes:
        """The config before any value is set, pickled: copying it from there is the fastest way."""
        if structural not in self._bases:
            config = hydra_compose("config", overrides=[*structural, *self._extra])
            self._bases[structural] = pickle.dumps(config, protocol=5)
        return self._bases[structural]
