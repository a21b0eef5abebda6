"""`plan --as dstack|xpk`: the same run as a .dstack.yml, or as the xpk command; printed, or written with --out."""

import argparse
import sys
from pathlib import Path

from slurm_rl.cli.common import check_overrides
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.plan.task import SECRET_NAMES, secret_names
from slurm_rl.plugins.export.dstack import render_dstack
from slurm_rl.plugins.export.xpk import XpkTarget, render_xpk
from slurm_rl.run_dir.io_errors import next_action
from slurm_rl.run_dir.run_dir import write_text


def run(args: argparse.Namespace) -> int:
    overrides = check_overrides(args.rest)
    config = load_config(overrides, config_dir=args.config_dir)
    if args.system == "dstack":
        if args.out and not args.out.endswith(".dstack.yml"):
            raise ConfigError("dstack reads files whose name ends with .dstack.yml", seen=args.out)
        text, mode = render_dstack(config, overrides, SECRET_NAMES, args.image, args.volume), 0o644
    else:
        if args.volume:
            raise ConfigError("--volume is for `plan --as dstack`", seen=args.volume[0], action="leave it out")
        image = args.image or config.container.image
        needed = {"--cluster": args.cluster, "--tpu-type": args.tpu_type, "--image": image}
        missing = [flag for flag, value in needed.items() if not value]
        if missing:
            raise ConfigError("`plan --as xpk` needs " + " ".join(needed), seen=f"no {', '.join(missing)}")
        target = XpkTarget(args.cluster, args.tpu_type, str(image), args.project, args.num_slices, args.priority)
        text, mode = render_xpk(config, target, secret_names(config)), 0o755
    if args.out is None:
        print(text, end="")
    else:
        _write(Path(args.out), text, mode)
    return 0


def _write(path: Path, text: str, mode: int) -> None:
    try:
        write_text(path, text, mode=mode)
    except OSError as error:
        raise ConfigError(
            "--out must be writable", seen=f"{path} ({error.strerror})", action=f"{next_action(error)}, or name another"
        ) from None
    print(path, file=sys.stderr)
