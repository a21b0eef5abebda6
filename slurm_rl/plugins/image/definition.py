"""Translate a Containerfile to an apptainer definition file, for machines that have only apptainer. Pure.

It knows the instructions of our recipes: ARG, FROM, COPY, RUN, ENV, USER, WORKDIR. %files come before %post, so a COPY
may not depend on a RUN of its stage. Users are left out: apptainer runs the image as the caller.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_rl.errors import ConfigError

# In a user namespace without subordinate ids apt cannot change to its own user.
_APT = """[ ! -d /etc/apt/apt.conf.d ] || echo 'APT::Sandbox::User "root";' > /etc/apt/apt.conf.d/00slurm-rl"""
_SHELL_WORD = re.compile(r"\$\{(\w+)\}")


@dataclass
class _Stage:
    base: str
    name: str | None
    files: dict[str, list[str]] = field(default_factory=dict)
    """Lines of %files by the stage that they come from; "" is the machine that builds."""
    post: list[str] = field(default_factory=list)
    environment: list[str] = field(default_factory=list)


def render_definition(containerfile: str, args: Mapping[str, str], context: str, label: str) -> str:
    """Return the definition file.

    Args:
        args: values of ARG.
        context: folder that COPY reads.
        label: hash of the recipe, for the label slurm_rl.recipe.

    Raises:
        ConfigError: an instruction is not known.
    """
    stages: list[_Stage] = []
    known: dict[str, str] = {}
    for word, rest in _instructions(containerfile):
        if word == "ARG":
            name, _, default = rest.partition("=")
            known[name] = args.get(name, known.get(name, _unquote(default)))
            if stages:
                stages[-1].post.append(f"export {name}={shlex.quote(known[name])}")
        elif word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages.append(_Stage(_SHELL_WORD.sub(lambda match: known[match[1]], base), name.strip() or None))
        elif not stages:
            raise _unknown(word, rest)
        else:
            _add(stages[-1], word, rest, context)
    return "\n".join(
        [*(line for stage in stages for line in _render(stage)), "%labels", f"    slurm_rl.recipe {label}\n"]
    )


def _instructions(text: str) -> list[tuple[str, str]]:
    """Return (instruction, rest) without comments; a continued line keeps its line breaks."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    whole = lines.replace("\\\n", "\0").splitlines()
    pairs = [line.partition(" ") for line in whole if line.strip()]
    return [(word.upper(), rest.strip().replace("\0", "\\\n")) for word, _, rest in pairs]


def _add(stage: _Stage, word: str, rest: str, context: str) -> None:
    if word == "COPY":
        *words, target = rest.split()
        source = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else ""
        for path in words:
            into = f"{target}{path.rpartition('/')[2]}" if target.endswith("/") else target
            stage.files.setdefault(source, []).append(f"{path if source else f'{context}/{path}'} {into}")
    elif word == "RUN":
        if not rest.startswith("useradd"):
            stage.post.append(f"( {rest} )")
    elif word == "ENV":
        stage.post.append(f"export {rest}")
        stage.environment.append(f"export {rest}")
    elif word == "WORKDIR":
        stage.post.append(f"mkdir -p {rest} && cd {rest}")
    elif word != "USER":
        raise _unknown(word, rest)


def _render(stage: _Stage) -> list[str]:
    lines = ["Bootstrap: docker", f"From: {stage.base}", *([f"Stage: {stage.name}"] if stage.name else []), ""]
    for source, files in stage.files.items():
        lines += [f"%files{f' from {source}' if source else ''}", *(f"    {line}" for line in files), ""]
    lines += ["%post", "    set -e", f"    {_APT}", *(f"    {line}" for line in stage.post), ""]
    if stage.environment:
        lines += ["%environment", *(f"    {line}" for line in stage.environment), ""]
    return lines


def _unquote(value: str) -> str:
    return next(iter(shlex.split(value)), "")


def _unknown(word: str, rest: str) -> ConfigError:
    return ConfigError(
        "apptainer builds recipes of ARG, FROM, COPY, RUN, ENV, USER and WORKDIR only",
        seen=f"{word} {rest}",
        action="build it with podman or docker",
    )
