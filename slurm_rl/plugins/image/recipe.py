"""A recipe with all that it reads, as one small folder: what the engine gets, and what the hash is of.

The image that it starts from is taken by digest, since what a tag means may be another image tomorrow:

    python -m slurm_rl image bases        asks the registries, and writes containers/bases.json anew

A base whose digest is in bases.json is used by that digest. Of another the registry is asked while it is built, and
where it does not answer the tag has to do; the manifest next to the image says which.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_rl.config.load import shipped_dir
from slurm_rl.errors import ConfigError
from slurm_rl.plan.accelerator import AcceleratorKind
from slurm_rl.plugins.image.tools import say
from slurm_rl.run_dir.run_dir import write_json

RECIPES: dict[AcceleratorKind, str] = {"nvidia": "cuda", "amd": "rocm", "cpu": "cpu"}
OTHERS = ("verl", "openrlhf", "maxtext")
"""Recipes of other trainers' images, by their tasks' names."""
LABEL = "slurm_rl.recipe"
"""Of an image in an engine's store: the hash it was built from."""


@dataclass(frozen=True)
class Recipe:
    """What is built, and with which arguments."""

    name: str
    """A folder of containers/."""
    args: Mapping[str, str] = field(default_factory=dict)
    """--build-arg of the engine; BASE is the image to start from."""

    @property
    def containerfile(self) -> str:
        return f"containers/{self.name}/Containerfile"


def write_context(recipe: Recipe, folder: Path) -> None:
    """Copy the recipe and the files it takes into `folder`: nothing else of the checkout reaches the engine."""
    shipped = shipped_dir("containers", "requirements.py")
    # In a checkout the lists of packages lie next to the folder; a wheel has them inside.
    lists = shipped if (shipped / "pyproject.toml").is_file() else shipped.parent
    (folder / recipe.containerfile).parent.mkdir(parents=True)
    for source, name in (
        (lists / "pyproject.toml", "pyproject.toml"),
        (lists / "constraints.txt", "constraints.txt"),
        (shipped / "requirements.py", "containers/requirements.py"),
    ):
        shutil.copyfile(source, folder / name)
    for source in (shipped / recipe.name).iterdir():
        shutil.copyfile(source, folder / "containers" / recipe.name / source.name)


def hash_recipe(recipe: Recipe, folder: Path) -> str:
    """SHA-256 of all that the build depends on, as far as we hold it in hand (a base by tag may move)."""
    digest = hashlib.sha256(json.dumps(sorted(recipe.args.items())).encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"\0{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


_TIMEOUT_S = 20.0
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Docker's own registry has another name than its images.
_API = {"docker.io": "registry-1.docker.io"}
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


def bases_file() -> Path:
    return shipped_dir("containers", "requirements.py") / "bases.json"


def read_bases(recipe: Recipe, folder: Path) -> dict[str, str]:
    """Name of the build argument to the image it stands for: those that the Containerfile in `folder` starts from."""
    text = (folder / recipe.containerfile).read_text(encoding="utf-8")
    started = set(re.findall(r"^FROM \$\{(\w+)\}", text, re.MULTILINE))
    written = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
    return {name: ref for name, ref in {**written, **recipe.args}.items() if name in started}


def pin_bases(bases: Mapping[str, str]) -> dict[str, str]:
    """The same with digests, as far as they can be known."""
    known: dict[str, str | None] = json.loads(bases_file().read_text(encoding="utf-8"))
    pinned = {}
    for name, ref in bases.items():
        digest = known.get(ref)
        try:
            digest = digest or resolve_digest(ref)
        except ConfigError as error:
            say(f"{ref} is taken by its tag: {error}")
        pinned[name] = f"{_split(ref)[0]}@{digest}" if digest and "@" not in ref else ref
    return pinned


def raise_bases() -> dict[str, str | None]:
    """Ask for all of them and write bases.json; what no registry tells stays as it is.

    Returns:
        What is written.
    """
    path = bases_file()
    known: dict[str, str | None] = json.loads(path.read_text(encoding="utf-8"))
    for ref in known:
        try:
            known[ref] = resolve_digest(ref)
        except ConfigError as error:
            say(f"{ref} stays {known[ref] or 'unknown'}: {error}")
    write_json(path, known)
    return known


def resolve_digest(ref: str) -> str:
    """What the registry says that the reference means now.

    Raises:
        ConfigError: it names no registry, or that does not answer, or says something else.
    """
    name, tag = _split(ref)
    host, _, path = name.partition("/")
    if not path or not ("." in host or ":" in host):
        raise ConfigError("a digest is asked from a registry", seen=f"none named in {ref}")
    scheme = "http" if host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"
    url = f"{scheme}://{_API.get(host, host)}/v2/{path}/manifests/{tag}"
    try:
        digest = _ask(url, None)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError("the registry must answer", seen=f"{host}: {error}") from None
    if not _DIGEST.fullmatch(digest):
        raise ConfigError("the registry must tell a SHA-256 digest", seen=f"{host}: {digest[:100]!r}")
    return digest


def _split(ref: str) -> tuple[str, str]:
    """Name and tag, or name and digest."""
    if "@" in ref:
        name, _, tag = ref.partition("@")
        return name, tag
    name, colon, tag = ref.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (ref, "latest")


def _ask(url: str, token: str | None) -> str:
    headers = {"Accept": ", ".join(_MANIFESTS)} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, headers=headers, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return str(answer.headers["Docker-Content-Digest"])
    except urllib.error.HTTPError as error:
        challenge = error.headers.get("WWW-Authenticate") or ""
        if error.code != 401 or token is not None or not challenge.startswith("Bearer "):
            raise
    # Public images need a token too, which everybody gets.
    words = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    query = urllib.parse.urlencode({name: words[name] for name in ("service", "scope") if name in words})
    with urllib.request.urlopen(f"{words['realm']}?{query}", timeout=_TIMEOUT_S) as answer:
        told: dict[str, Any] = json.loads(answer.read(100_000))
    return _ask(url, str(told.get("token") or told["access_token"]))
