"""Hydra config source for the presets of a site or user: `preset://<folder>`."""

from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from slurm_rl.config.overrides import GROUPS
from slurm_rl.config.run import RunConfig
from slurm_rl.config.yaml_text import parse_yaml, read_text
from slurm_rl.errors import ConfigError

SCHEME = "preset"
_PACKAGE_LINE = "# @package _global_"


class PresetSource(FileConfigSource):
    """Hydra's file source with our YAML parser and errors."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        file = Path(self.path) / self._normalize_file_name(config_path)
        text = read_text(file)
        tree = parse_yaml(text, str(file))
        if not isinstance(tree, dict | None):
            action = "write `<section>:` and its keys, indented, below"
            raise ConfigError("a preset must be a mapping", seen=f"{file}: {type(tree).__name__}", action=action)
        try:
            header = self._get_header_dict(text)
        except ValueError as error:
            action = f"write {_PACKAGE_LINE} as its first line"
            raise ConfigError("the header of the preset is wrong", seen=f"{file}: {error}", action=action) from None
        if header["package"] is None:
            _check_package(file, Path(config_path).parts[0], tree or {})
        path = f"{SCHEME}://{self.path}"
        return ConfigResult(provider=self.provider, path=path, config=OmegaConf.create(tree or {}), header=header)


def _check_package(file: Path, group: str, tree: dict[str, Any]) -> None:
    """Raise if a preset without a package line has keys that Hydra would put below the group in vain."""
    field = RunConfig.model_fields.get(group)
    own = getattr(field.annotation, "model_fields", {}) if field is not None else {}
    # A group such as exp is no section: there no key can be right.
    known = RunConfig.model_fields.keys() if field is not None else tree.keys() - {"defaults"}
    sections = [key for key in tree if key in known and key not in own]
    if group in GROUPS and sections:
        raise ConfigError(
            f"the preset lacks the line `{_PACKAGE_LINE}`",
            seen=f"{file}, which sets {', '.join(sections)}",
            action=f"write it as the first line of the file: without it these would be keys of `{group}`",
        )


def register_source() -> None:
    """Register the scheme `preset://` with Hydra."""
    SourcesRegistry.instance().register(PresetSource)
