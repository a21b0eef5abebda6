"""`export dstack|xpk`: the same run as a .dstack.yml, or as the xpk command; printed, or written with --out."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from slurm_rl.cli.common import parse_overrides
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.export.dstack import render_dstack
from slurm_rl.export.xpk import XpkTarget, render_xpk
from slurm_rl.plan.job import SECRET_NAMES
from slurm_rl.run_dir import write_text

_PRIORITIES = ["very-low", "low", "medium", "high", "very-high"]


def run(words: list[str]) -> int:
    args, rest = _parser().parse_known_args(words)
    overrides, config_dir = parse_overrides(rest)
    config = load_config(overrides, config_dir=config_dir)
    if args.system == "dstack":
        if args.out and not args.out.endswith(".dstack.yml"):
            raise ConfigError("dstack reads files whose name ends with .dstack.yml", seen=args.out)
        text, mode = render_dstack(config, overrides, SECRET_NAMES, args.image), 0o644
    else:
        image = args.image or config.container.image
        needed = {"--cluster": args.cluster, "--tpu-type": args.tpu_type, "--image": image}
        missing = [flag for flag, value in needed.items() if not value]
        if missing:
            raise ConfigError("export xpk needs " + " ".join(needed), seen=f"no {', '.join(missing)}")
        target = XpkTarget(args.cluster, args.tpu_type, str(image), args.project, args.num_slices, args.priority)
        text, mode = render_xpk(config, target, SECRET_NAMES), 0o755
    if args.out is None:
        print(text, end="")
    else:
        _write(Path(args.out), text, mode)
    return 0


def _write(path: Path, text: str, mode: int) -> None:
    try:
        write_text(path, text, mode=mode)
    except OSError as error:
        raise ConfigError("--out must be writable", seen=f"{path} ({error.strerror})") from None
    print(path, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m slurm_rl export", allow_abbrev=False)
    parser.add_argument("system", choices=["dstack", "xpk"])
    parser.add_argument("--out", help="a file in place of standard output")
    parser.add_argument("--image", help="Docker reference, in place of container.image")
    parser.add_argument("--cluster", help="xpk: name of the GKE cluster")
    parser.add_argument("--tpu-type", help="xpk: such as v5p-128")
    parser.add_argument("--project", help="xpk: Google Cloud project")
    parser.add_argument("--num-slices", type=int, default=1, help="xpk: slices of that type")
    parser.add_argument("--priority", choices=_PRIORITIES, default="medium", help="xpk")
    return parser
