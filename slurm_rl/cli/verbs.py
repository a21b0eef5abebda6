"""Table of verbs with their flags. Standard library only.

The module slurm_rl.cli.<verb> has `run(words)`, imported when the verb is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurm_rl.cli.flags import Verb, flag, parse_port, parse_positive, switch

_OVERRIDES = "overrides: key=value sets a key, group=option or +group=option takes a preset (python -m slurm_rl --help"
_OVERRIDES += "\nlists them); every key with its meaning: python -m slurm_rl config"
_RUN = "run: its directory, its name or its job id; without one, the run that you submitted last"
_CONFIG_DIR = flag("--config-dir", metavar="DIR", help="a folder with presets of your own")
_JSON = switch("--json", help="as JSON")
_ORDER: dict[str, Any] = {"dest": "smallest_first", "default": None, "not_with": "order"}
_PRIORITIES = ("very-low", "low", "medium", "high", "very-high")

VERBS = {
    "prepare": Verb(
        "fetch and check a data set or a model, on the login node (mathv60k, gsm8k, math; model <repo>)",
        "what [repo]",
        "prepare gsm8k --root /shared/data",
        (
            flag("--root", type=Path, default=Path("data"), help="folder to write below; ./data by default"),
            flag("--revision", default="main", help="branch, tag or commit of the repository"),
            switch("--leave-out-bad-rows", help="go on without rows that are not whole"),
            flag("--format", choices=["jsonl", "verl"], default="jsonl", help="verl: its parquet, below ROOT/verl"),
        ),
        details="From the Hugging Face hub (HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE). A call that is cut off"
        "\ngoes on where it was, and one that finds everything whole does nothing.",
        list_details="slurm_rl.cli.prepare:list_recipes",
    ),
    "submit": Verb(
        "start a run on this machine, or on a cluster with +cluster=...; or the stages of a pipeline file",
        "[file.yaml] [overrides]",
        "submit +exp=demo +cluster=nvidia_h100 cluster.slurm.partition=gpu",
        (
            _CONFIG_DIR,
            switch("-m", "--multirun", help="a sweep: values with commas between them, optim.lr=1e-4,6e-4"),
            flag("--metric", needs="-m", help="-m: the metric that ranks runs and that a sweeper optimizes"),
            switch("--min", needs="-m", help="-m: smaller is better"),
            flag("--cfg", "-c", choices=["job", "hydra", "all"], help="print the composed config, start nothing"),
            flag("--package", "-p", help="--cfg: of this section alone"),
            flag("--info", "-i", nargs="?", const="all", metavar="WHAT", help="print how Hydra composed it"),
            switch("--hydra-help", help="Hydra's own flags"),
            flag("--dir", type=Path, metavar="DIR", help="pipeline: new folder; ./runs/<file>-<time> by default"),
        ),
        details="A pipeline file has one line per stage, its name and its overrides. A stage starts when the one before"
        "\nit has finished; {sft} is the directory of the stage sft:"
        "\n\n  sft: +exp=sft_tiny\n  grpo: +exp=demo model=hf model.path={sft}/export\n\n"
        "status, cancel and resume take the folder; overrides apply to all stages.\n\n" + _OVERRIDES,
    ),
    "eval": Verb(
        "measure a model on sets of rows, as a job of its own: avg@k and pass@k, nothing is trained",
        "[run] [overrides]",
        "eval model=hf model.path=Qwen/Qwen3-0.6B +reward=math +eval.sets.gsm8k.data=openai/gsm8k "
        "+eval.sets.gsm8k.subset=main",
        (
            _CONFIG_DIR,
            flag("--step", type=int, help="checkpoint of the run; its export by default, else the newest"),
        ),
        details="run: a run of any task, by directory, name or job id; so is model.path=<run>. Its model is what it"
        "\nexported, or a checkpoint (--step), which is converted into the new run directory and needs torch here."
        "\nThe evaluation takes over the run's settings of data, rollout, reward and env; overrides win. Otherwise"
        "\nmodel.path is a hub name or a folder. Results: status, logs, report; docs/evaluation.md.\n\n" + _OVERRIDES,
    ),
    "run-in-job": Verb(
        "run inside the current Slurm allocation, from plain sbatch (--print-template: the script)",
        "[overrides]",
        "run-in-job --print-template > job.sbatch",
        (_CONFIG_DIR, switch("--print-template", help="the script for sbatch, which calls this verb")),
        details=_OVERRIDES,
    ),
    "join": Verb(
        "join this machine to a run without Slurm (RunPod, GCP, dstack): the same command on each machine",
        "[overrides]",
        "join +exp=demo +cluster=runpod --rank 0 --nodes 2",
        (
            _CONFIG_DIR,
            flag("--run", metavar="RUN", help="resume this run, on as many machines as there are now"),
            flag("--rank", type=int, help="0 on the head; a worker may leave it to the head"),
            flag("--nodes", type=int, help="of the whole run"),
            flag("--head", metavar="HOST", help="name or address of node 0"),
            flag("--port", type=parse_port, help="of the head; cluster.head_port by default"),
        ),
        details=_OVERRIDES,
    ),
    "site": Verb(
        "write the preset of this cluster, from what Slurm and this login node tell (--yes asks nothing)",
        "",
        "site --name mysite",
        (
            flag("--name", help="of the preset; the cluster's own by default"),
            flag("--config-dir", metavar="DIR", help="folder to write below; ~/.config/slurm_rl by default"),
            switch("--yes", help="ask nothing: what is assumed is marked in the file"),
            switch("--force", help="write over a preset of this name"),
            switch("--check", help="then run `doctor` on a node of it, for which Slurm is asked"),
            flag("--partition", help="answers that question, as do the next ones"),
            flag("--accelerator", help="nvidia, amd or cpu"),
            flag("--account", help="of Slurm"),
            flag("--run-root", metavar="DIR", help="for run directories; all nodes see it"),
            flag("--image", help="container image: a .sqsh, a .sif or a reference"),
            flag("--network", help="auto, ib, efa or eth0"),
        ),
        details="It queues nothing without --check, and no other preset is touched. Each line of the file says where"
        "\nits value comes from. Slurm's own word on it, by sbatch --test-only, stands at its top.",
    ),
    "doctor": Verb(
        "check nodes before the first run: GPUs, speed, network, limits; with --nodes, manage excluded nodes",
        "[overrides]",
        "doctor +cluster=nvidia_h100 cluster.slurm.partition=gpu",
        (
            _CONFIG_DIR,
            _JSON,
            switch("--here", help="check only this machine"),
            flag("--timeout", type=parse_positive, default=600.0, metavar="S", help="for nodes and their answers"),
            switch("--nodes", help="list the nodes that are recorded as bad, and why"),
            flag(
                "--clear",
                needs="--nodes",
                action="append",
                metavar="NODE",
                help="--nodes: remove this node from the list",
            ),
            flag(
                "--exclude",
                needs="--nodes",
                action="append",
                metavar="NODE",
                help="--nodes: add this node; needs --why",
            ),
            flag("--why", needs="--exclude", help="--exclude: the reason"),
            flag(
                "--days",
                needs="--exclude",
                type=parse_positive,
                default=7.0,
                help="--exclude: until then or the next boot; 7",
            ),
            flag(
                "--site-dir",
                needs="--nodes",
                metavar="DIR",
                help="--nodes: cluster.site_dir; that of the run by default",
            ),
            flag("--run", needs="--nodes", metavar="DIR", help="--nodes: the run; the newest one without --site-dir"),
        ),
        details="In an allocation (salloc, sbatch) it looks at all its nodes by one srun; else, with a Slurm preset,"
        "\nat cluster.num_nodes that it asks for; else at this machine. Exit code 1 when something is wrong.\n\n"
        + _OVERRIDES,
    ),
    "plan": Verb(
        "print a summary of a run and what submit would refuse (--script: what would be sent)",
        "[overrides]",
        "plan +exp=demo +cluster=nvidia_h100 cluster.num_nodes=4",
        (
            _CONFIG_DIR,
            switch("--json", help="print what would be sent, as JSON", not_with="output"),
            switch("--script", help="print what would be sent", not_with="output"),
            flag("--as", dest="system", not_with="output", choices=["dstack", "xpk"], help="print it for this system"),
            flag("--out", needs="--as", metavar="FILE", help="--as: in place of standard output"),
            flag("--image", needs="--as", help="--as: Docker reference, in place of container.image"),
            flag(
                "--volume",
                needs="--as",
                action="append",
                default=[],
                metavar="V:/PATH",
                help="dstack: a folder or network volume",
            ),
            flag("--cluster", needs="--as", help="xpk: name of the GKE cluster"),
            flag("--tpu-type", needs="--as", metavar="TYPE", help="xpk: such as v5p-128"),
            flag("--project", needs="--as", help="xpk: Google Cloud project"),
            flag("--num-slices", needs="--as", type=int, default=1, metavar="N", help="xpk: slices of that type"),
            flag("--priority", needs="--as", choices=_PRIORITIES, default="medium", help="xpk: medium by default"),
        ),
        details="Exit code 2 if submit would refuse the run, as far as this machine can check.\n\n" + _OVERRIDES,
    ),
    "config": Verb(
        "what can be set: sections, the keys of one, or all of one key; +group: the presets of a group",
        "[section | key | +group] [overrides]",
        "config optim +exp=demo",
        (_CONFIG_DIR, switch("--completion", help="print completions for bash and zsh")),
        details="With overrides, print the values that they set and the defaults. Completions of verbs, flags, presets"
        '\nand keys, in ~/.bashrc or ~/.zshrc: eval "$(python -m slurm_rl config --completion)"\n\n' + _OVERRIDES,
    ),
    "image": Verb(
        "build, import or check the container image that the preset names",
        "build|import|check [overrides]",
        "image build +cluster=nvidia_h100 container.runtime=pyxis container.image=/shared/rl.sqsh",
        (
            _CONFIG_DIR,
            flag("--engine", help="podman, docker or buildah; the first that answers by default"),
            flag("--base", help="build: the image to start from, in place of the recipe's"),
            flag("--build-arg", action="append", default=[], metavar="NAME=VALUE", help="build: of the recipe"),
            flag(
                "--engine-arg", action="append", default=[], metavar="ARG", help="build: for `<engine> build`, as it is"
            ),
            flag("--from", dest="source", help="import: a reference, or the .tar of a root file system"),
            switch("--force", help="make it although it is up to date"),
            flag("--timeout", type=parse_positive, default=900.0, metavar="S", help="check: for a node and an answer"),
        ),
        details="The preset, or overrides, say which: container.runtime, container.image, cluster.accelerator.\n\n"
        + _OVERRIDES,
    ),
    "status": Verb(
        "state of a run, or of all runs in a folder; the leaderboard of a sweep",
        "[run | sweep | folder]",
        "status runs",
        (
            flag("--svg", type=Path, metavar="FILE", help="draw the table of a pipeline, a sweep or a folder, too"),
            flag("--metric", help="sweep: key of metrics.jsonl, or dotted path in the summary; the sweep's by default"),
            switch("--min", help="sweep: smaller is better", **_ORDER),
            flag("--max", action="store_false", help="sweep: larger is better", **_ORDER),
            switch("--json", help="sweep: the leaderboard as JSON"),
        ),
        details=_RUN,
    ),
    "logs": Verb(
        "print a run's logs (-f to follow, --who driver|node-0|ray-0)",
        "[run]",
        "logs -f --who node-0",
        (
            switch("-f", "--follow", help="go on as the log grows, until the run ends"),
            flag(
                "--who",
                default="driver",
                help="driver, node-<rank>, ray-<rank> or torchrun-<rank>, srun, or job (the batch job's)",
            ),
        ),
        details=_RUN,
    ),
    "samples": Verb(
        "print what the policy wrote, turn by turn, with rewards",
        "[run]",
        "samples --step 40",
        (flag("--step", type=int, help="of this step; the newest by default"),),
        details=_RUN,
    ),
    "attach": Verb(
        "open a shell on a node of a run, in its container; --dashboard: ssh forward to Ray and TensorBoard",
        "[run] [-- command]",
        "attach --node 1 -- nvidia-smi",
        (
            flag("--node", type=int, default=0, metavar="RANK", help="0, the head, by default"),
            switch("--dashboard", help="print the ssh forward to the Ray dashboard and TensorBoard"),
            switch("--open", needs="--dashboard", help="--dashboard: open it until Ctrl-C, and start TensorBoard"),
            flag(
                "--port",
                needs="--dashboard",
                type=parse_port,
                default=8265,
                help="--dashboard: local port of Ray; 8265 by default",
            ),
            flag(
                "--tensorboard-port",
                needs="--dashboard",
                type=parse_port,
                default=6006,
                metavar="PORT",
                help="6006 by default",
            ),
        ),
        details=_RUN,
        takes_command=True,
    ),
    "cancel": Verb(
        "end a run; what it saved stays",
        "[run | sweep | job id]",
        "cancel runs/addition-20261121-101500",
        details=_RUN,
    ),
    "resume": Verb(
        "resume a run from its newest checkpoint",
        "[run]",
        "resume runs/addition-20261121-101500",
        (
            switch(
                "--accept-new-rows", help="go on although rows of the data were corrected, added or removed; recorded"
            ),
        ),
        details=_RUN,
    ),
    "convert": Verb(
        "write a checkpoint as a Hugging Face model (--step, --out)",
        "[run]",
        "convert --step 100 --out /shared/models/mine",
        (
            flag("--step", type=int, help="which checkpoint; the newest by default"),
            flag("--out", type=Path, help="new folder; <run>/export-step-<k> by default"),
            flag(
                "--max-shard-gb", type=parse_positive, default=5.0, metavar="GB", help="size of one file; 5 by default"
            ),
            switch("--no-check", help="do not load the result to compare its logits"),
        ),
        details=_RUN,
    ),
    "report": Verb(
        "write summary.json and report.html of a run or a sweep; --goodput: where its GPU-time went",
        "[run | sweep | folder]",
        "report runs --goodput --since 30d",
        (
            switch("--goodput", help="GPU-time by cause, of a run or of all runs below folders (./runs by default)"),
            flag("--since", needs="--goodput", metavar="DAY", help="--goodput: from 2026-11-01, or the last 30d"),
            switch("--json", needs="--goodput", help="--goodput: as JSON"),
            flag(
                "--svg",
                needs="--goodput",
                type=Path,
                metavar="FILE",
                help="--goodput: draw the bar of all of them together, too",
            ),
            switch(
                "--accounting",
                needs="--goodput",
                help="--goodput: hold times from Slurm's accounting (sacct), to the second",
            ),
        ),
        details=_RUN,
    ),
}

OLD_COMMANDS = {
    "completion": "slurm_rl config --completion",
    "episodes": "slurm_rl samples",
    "explain": "slurm_rl plan",
    "export": "slurm_rl plan --as dstack|xpk",
    "goodput": "slurm_rl report --goodput",
    "here": "slurm_rl run-in-job",
    "node": "slurm_rl join",
    "nodes": "slurm_rl doctor --nodes [--clear NODE | --exclude NODE]",
    "pipeline": "slurm_rl submit",
    "reward-server": "slurm_rl.rewards.server",
    "results": "slurm_rl status",
    "tunnel": "slurm_rl attach --dashboard",
}
"""Old names of verbs, and the command that replaces each, after `python -m`."""
