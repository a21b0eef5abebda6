"""Verbs of the plugins and their flags. Standard library only."""

import argparse
from pathlib import Path

from slurm_rl.cli.parser import Verbs, parse_positive
from slurm_rl.cli.verbs import OVERRIDES, RUN, add_config_dir

_PLUGINS = "slurm_rl.plugins"


def add_verbs(verbs: Verbs) -> None:
    """Add the plugins' verbs, and the flags of `plan --as`."""
    for add in (_add_report, _add_init, _add_prepare, _add_site, _add_doctor, _add_image, _add_export_flags):
        add(verbs)
    _add_completion(verbs)


def _add_completion(verbs: Verbs) -> None:
    parser = verbs.add(
        "completion",
        "print tab completion for the command slurm-rl, for bash and zsh",
        "",
        "completion >> ~/.bashrc",
        f"{_PLUGINS}.completion.command:run",
        "It completes verbs, flags, presets, keys and their choices, runs and job ids.",
    )
    parser.flag("--line", help=argparse.SUPPRESS)
    parser.flag("--length", type=int, help=argparse.SUPPRESS)


def _add_report(verbs: Verbs) -> None:
    parser = verbs.add(
        "report",
        "write summary.json and report.html of a run or a sweep; --goodput: GPU-time by cause",
        "[run | sweep | folder]",
        "report runs --goodput",
        f"{_PLUGINS}.report.command:run",
        RUN,
    )
    parser.switch("--goodput", help="GPU-time by cause, of a run or of all runs below folders (./runs by default)")
    parser.switch("--json", help="print the summary, or a sweep's leaderboard, or --goodput as JSON")
    parser = verbs.add(
        "samples",
        "print the completions of the policy, turn by turn, with rewards",
        "[run]",
        "samples --step 40",
        f"{_PLUGINS}.report.command:run_samples",
        RUN,
    )
    parser.flag("--step", type=int, help="step to print; the newest by default")
    parser.switch("--json", help="as JSON, the rows of samples.jsonl")


def _add_init(verbs: Verbs) -> None:
    parser = verbs.add(
        "init",
        "write a project folder: an experiment that trains as written, its reward and data",
        "folder",
        "init my-project",
        f"{_PLUGINS}.project.command:run",
        "Verbs find the presets in the folder `conf` of the current folder. No file is overwritten.",
    )
    parser.flag("--name", help="name of the experiment; that of the folder by default")


def _add_prepare(verbs: Verbs) -> None:
    parser = verbs.add(
        "prepare",
        "fetch and check a data set or a model, on the login node (mathv60k, gsm8k, math; model <repo>)",
        "what [repo]",
        "prepare gsm8k --root /shared/data",
        f"{_PLUGINS}.prepare.command:run",
        "From the Hugging Face hub (HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE). An interrupted call"
        "\nresumes, and one that finds everything complete does nothing.",
    )
    parser.list_details = f"{_PLUGINS}.prepare.command:list_recipes"
    parser.flag("--root", type=Path, default=Path("data"), help="folder to write below; ./data by default")
    parser.flag("--revision", default="main", help="branch, tag or commit of the repository")
    parser.switch("--leave-out-bad-rows", help="continue without incomplete rows")
    verl = "verl: its parquet, below ROOT/verl"
    parser.flag("--format", choices=["jsonl", "verl"], default="jsonl", help=verl)


def _add_site(verbs: Verbs) -> None:
    parser = verbs.add(
        "site",
        "write the preset of this cluster, from facts of Slurm and this login node",
        "",
        "site --name mysite",
        f"{_PLUGINS}.site.command:run",
        "It queues nothing, and changes no other preset. The file begins with Slurm's verdict, from sbatch --test-only,"
        "\nand the source of each value.",
    )
    parser.flag("--name", help="name of the preset; the cluster's name by default")
    where = (
        "folder to write below; by default `conf` of the current folder if that is a project, else ~/.config/slurm_rl"
    )
    parser.flag("--config-dir", metavar="DIR", help=where)
    parser.switch("--force", help="write over a preset of this name")
    parser.flag("--partition", help="in place of the assumed one, which the file marks; so do the next flags")
    parser.flag("--accelerator", help="nvidia, amd or cpu")
    parser.flag("--account", help="of Slurm")
    parser.flag("--run-root", metavar="DIR", help="folder for run directories, shared by all nodes")
    parser.flag("--image", help="container image: a .sqsh, a .sif or a reference")
    parser.flag("--network", help="auto, ib, efa or eth0")


def _add_doctor(verbs: Verbs) -> None:
    parser = verbs.add(
        "doctor",
        "check nodes before the first run: GPUs, speed, network, limits; with --nodes, manage excluded nodes",
        "[overrides]",
        "doctor +cluster=nvidia_h100 cluster.slurm.partition=gpu",
        f"{_PLUGINS}.health.command:run",
        "In an allocation (salloc, sbatch) it checks all nodes of it with one srun; else, with a Slurm preset,"
        "\ncluster.num_nodes nodes that it requests; else this machine. Exit code 1 if a check is bad."
        f"\n\n{OVERRIDES}",
    )
    add_config_dir(parser)
    parser.switch("--json", help="as JSON")
    parser.switch("--here", help="check only this machine")
    parser.flag("--timeout", type=parse_positive, default=600.0, metavar="S", help="time to wait for results")
    parser.switch("--nodes", help="list the nodes that are recorded as bad, and why")
    remove, add = "--nodes: remove this node from the list", "--nodes: add this node; needs --why"
    parser.flag("--clear", needs="--nodes", action="append", metavar="NODE", help=remove)
    parser.flag("--exclude", needs="--nodes", action="append", metavar="NODE", help=add)
    parser.flag("--why", needs="--exclude", help="--exclude: the reason")
    days = "--exclude: days until it expires, 7 by default; a reboot ends it, too"
    parser.flag("--days", needs="--exclude", type=parse_positive, default=7.0, help=days)
    site = "--nodes: cluster.site_dir; that of the run by default"
    parser.flag("--site-dir", needs="--nodes", metavar="DIR", help=site)
    run = "--nodes: the run; the newest one without --site-dir"
    parser.flag("--run", dest="named", needs="--nodes", metavar="DIR", help=run)


def _add_image(verbs: Verbs) -> None:
    parser = verbs.add(
        "image",
        "build or import the container image of the preset",
        "build|import [overrides]",
        "image build +cluster=nvidia_h100 container.runtime=pyxis container.image=/shared/rl.sqsh",
        f"{_PLUGINS}.image.command:run",
        f"The preset or overrides set container.runtime, container.image and cluster.accelerator.\n\n{OVERRIDES}",
    )
    add_config_dir(parser)
    parser.flag("--engine", help="podman or docker, or apptainer for a .sif; the first that answers by default")
    parser.flag("--base", help="build: the image to start from, in place of the recipe's")
    argument = "build: a build argument of the recipe"
    parser.flag("--build-arg", action="append", default=[], metavar="NAME=VALUE", help=argument)
    argument = "build: for `<engine> build` (`apptainer build`), unchanged"
    parser.flag("--engine-arg", action="append", default=[], metavar="ARG", help=argument)
    parser.flag("--from", dest="source", help="import: a reference, or the .tar of a root file system")
    parser.switch("--force", help="build it even if it is up to date")


def _add_export_flags(verbs: Verbs) -> None:
    parser = verbs.by_name["plan"]
    parser.flag("--out", needs="--as", metavar="FILE", help="--as: file to write; standard output by default")
    parser.flag("--image", needs="--as", help="--as: Docker reference, in place of container.image")
    volume = "dstack: a folder or network volume"
    parser.flag("--volume", needs="--as", action="append", default=[], metavar="V:/PATH", help=volume)
    parser.flag("--cluster", needs="--as", help="xpk: name of the GKE cluster")
    parser.flag("--tpu-type", needs="--as", metavar="TYPE", help="xpk: such as v5p-128")
    parser.flag("--project", needs="--as", help="xpk: Google Cloud project")
    parser.flag("--num-slices", needs="--as", type=int, default=1, metavar="N", help="xpk: slices of that type")
    priorities = ("very-low", "low", "medium", "high", "very-high")
    parser.flag("--priority", needs="--as", choices=priorities, default="medium", help="xpk: medium by default")
