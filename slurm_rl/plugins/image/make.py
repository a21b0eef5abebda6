"""Build or import an image; a second call does nothing if the recipe is the same."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import ConfigError
from slurm_rl.plan.image_file import image_path, is_as_made, manifest_path
from slurm_rl.plugins.image.definition import render_definition
from slurm_rl.plugins.image.engines import Engine, choose_engine, is_apptainer_only
from slurm_rl.plugins.image.formats import build_by_apptainer, check_maker, import_by_enroot
from slurm_rl.plugins.image.recipe import LABEL, Recipe, hash_recipe, write_context
from slurm_rl.run_dir.run_dir import write_json


@dataclass(frozen=True)
class Target:
    """Runtime and image of the config."""

    runtime: str
    image: str

    @property
    def path(self) -> Path | None:
        """The file to write; None if the image stays in the engine's store."""
        return image_path(self.runtime, self.image)


def build_image(
    target: Target, recipe: Recipe, program: str | None = None, engine_args: Sequence[str] = (), *, force: bool = False
) -> bool:
    """Build the recipe into the target.

    Args:
        program: podman, docker or apptainer; None takes the first that answers.
        engine_args: further arguments of `<engine> build`.
        force: build again even if the image is up to date.

    Returns:
        False if the image is up to date.

    Raises:
        ConfigError: no engine, no program for the format, no space, or a failed build; no partial file remains.
    """
    check_target(target)
    with tempfile.TemporaryDirectory(prefix="slurm_rl-image-") as folder:
        context = Path(folder)
        write_context(recipe, context)
        source_hash = hash_recipe(recipe, context)
        if _is_made(target, source_hash) and not force:
            return False
        if target.path is not None and is_apptainer_only(target.runtime, program):
            check_maker(target.runtime)
            _build_by_apptainer(recipe, context, source_hash, target.path, engine_args)
            _write_manifest(target.path, source_hash, recipe.name)
            return True
        engine = choose_engine(program)
        check_maker(target.runtime)
        tag = f"localhost/slurm_rl-{recipe.name}:{source_hash[:12]}" if target.path else target.image
        stored = engine.inspect(tag)
        if force or stored is None or stored.labels.get(LABEL) != source_hash:
            engine.build(recipe, context, tag, source_hash, engine_args)
        elif target.path is None:
            return False
    if target.path is not None:
        _make_file(target, target.path, engine, tag)
        _write_manifest(target.path, source_hash, recipe.name)
    return True


def import_image(target: Target, ref: str, program: str | None = None, *, force: bool = False) -> bool:
    """Convert an existing image: a reference, or the .tar of a root file system.

    A tag may refer to another image later; `force` fetches it again.

    Returns:
        False if the image is up to date.

    Raises:
        ConfigError: as build_image; or the tar does not exist.
    """
    check_target(target)
    is_tar, path = ".tar" in Path(ref).name, target.path
    ref = ref.removeprefix("docker://")
    if path is None:
        action = f"{target.runtime} import {ref} {target.image}" if is_tar else f"container.image={ref}"
        raise ConfigError(f"{target.runtime} starts images of its own store, not files", seen=ref, action=action)
    if is_tar and not Path(ref).is_file():
        raise ConfigError("--from must name an existing tar, or a reference", seen=ref)
    source_hash = _hash_source(ref, is_tar)
    if _is_made(target, source_hash) and not force:
        return False
    if target.runtime == "pyxis" and not is_tar and shutil.which("enroot") and program is None:
        import_by_enroot(ref, path)
    elif not is_tar and is_apptainer_only(target.runtime, program, ref):
        check_maker(target.runtime)
        build_by_apptainer(f"docker://{ref}", path)
    else:
        engine = None if is_tar else choose_engine(program)
        check_maker(target.runtime)
        if engine is not None and (engine.inspect(ref) is None or force):
            engine.pull(ref)
        _make_file(target, path, engine, ref)
    _write_manifest(path, source_hash, ref)
    return True


def _build_by_apptainer(recipe: Recipe, context: Path, label: str, path: Path, extra: Sequence[str]) -> None:
    definition = context / "recipe.def"
    text = (context / recipe.containerfile).read_text(encoding="utf-8")
    definition.write_text(render_definition(text, recipe.args, str(context), label), encoding="utf-8")
    build_by_apptainer(str(definition), path, extra)


def check_target(target: Target) -> None:
    """Raise ConfigError, before any work, for a target that cannot be written."""
    suffix, path = RUNTIMES[target.runtime].image_suffix, target.path
    if target.runtime == "none":
        raise ConfigError(
            "an image needs a container runtime",
            seen="container.runtime=none",
            action="container.runtime=pyxis container.image=/shared/images/slurm_rl.sqsh, or a preset with them",
        )
    if suffix is not None and (path is None or path.suffix != suffix):
        raise ConfigError(
            f"for {target.runtime}, container.image is the path of the {suffix} to make",
            seen=target.image,
            action=f"container.image=/shared/images/slurm_rl{suffix}, in a folder that every node sees",
        )
    if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise ConfigError("container.image must be in a writable folder", seen=str(path.parent), action="create it")


def _is_made(target: Target, source_hash: str) -> bool:
    if target.path is None:
        return False
    try:
        manifest = json.loads(manifest_path(target.path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return is_as_made(target.path, source_hash, manifest if isinstance(manifest, dict) else None)


def _hash_source(ref: str, is_tar: bool) -> str:
    words = [ref]
    if is_tar:
        found = Path(ref).stat()
        words += [str(found.st_size), str(found.st_mtime_ns)]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _make_file(target: Target, path: Path, engine: Engine | None, ref: str) -> None:
    name = RUNTIMES[target.runtime].maker
    assert name is not None, "a runtime with image files has a maker"
    load_function(name)(engine, ref, path)


def _write_manifest(path: Path, source_hash: str, origin: str) -> None:
    write_json(manifest_path(path), {"source_hash": source_hash, "size": path.stat().st_size, "from": origin})
