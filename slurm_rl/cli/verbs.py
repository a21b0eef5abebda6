"""The verbs: a row holds all that others must know of one, its flags included. The standard library alone.

The module slurm_rl.cli.<verb> has the rest: `run(words)`, imported once the verb is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurm_rl.cli.flags import Verb, flag, parse_finite, parse_port, parse_positive, parse_server_port, switch

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
        "start a run: here by default, on a cluster with +cluster=...",
        "[overrides]",
        "submit +exp=demo +cluster=nvidia_h100 cluster.slurm.partition=gpu",
        (
            _CONFIG_DIR,
            switch("-m", "--multirun", help="a sweep: values with commas between them, optim.lr=1e-4,6e-4"),
            flag("--metric", help="-m: what `results` ranks by and a sweeper is told"),
            switch("--min", help="-m: less of it is better"),
            flag("--cfg", "-c", choices=["job", "hydra", "all"], help="print the composed config, start nothing"),
            flag("--package", "-p", help="--cfg: of this section alone"),
            flag("--info", "-i", nargs="?", const="all", metavar="WHAT", help="print how Hydra composed it"),
            switch("--hydra-help", help="Hydra's own flags"),
        ),
        details=_OVERRIDES,
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
    "pipeline": Verb(
        "run the stages of a file, each when the one before it has finished: SFT, then GRPO from its export",
        "file [overrides]",
        "pipeline sft-then-grpo.yaml",
        (_CONFIG_DIR, flag("--dir", type=Path, metavar="DIR", help="new folder; ./runs/<file>-<time> by default")),
        details="One line a stage, its name and its words; {sft} in them is the directory of the stage sft:"
        "\n\n  sft: +exp=sft_tiny\n  grpo: +exp=demo model=hf model.path={sft}/export\n\n"
        "status, cancel and resume take the folder; overrides are for all stages.\n\n" + _OVERRIDES,
    ),
    "here": Verb(
        "run in the Slurm allocation around it, from plain sbatch (--print-template: the script)",
        "[overrides]",
        "here --print-template > job.sbatch",
        (_CONFIG_DIR, switch("--print-template", help="the script for sbatch, which calls this verb")),
        details=_OVERRIDES,
    ),
    "node": Verb(
        "run over machines without Slurm (RunPod, GCP, dstack, by hand): the same line on each of them",
        "[overrides]",
        "node +exp=demo +cluster=runpod --rank 0 --nodes 2",
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
        "look at the nodes before the first run: GPUs, masks, speed, network, limits, and what to do (--json)",
        "[overrides]",
        "doctor +cluster=nvidia_h100 cluster.slurm.partition=gpu",
        (
            _CONFIG_DIR,
            _JSON,
            switch("--here", help="this machine alone"),
            flag("--timeout", type=parse_positive, default=600.0, metavar="S", help="for nodes and their answers"),
        ),
        details="In an allocation (salloc, sbatch) it looks at all its nodes by one srun; else, with a Slurm preset,"
        "\nat cluster.num_nodes that it asks for; else at this machine. Exit code 1 when something is wrong.\n\n"
        + _OVERRIDES,
    ),
    "plan": Verb(
        "print what submit would send, and what it would refuse, without sending it (--json)",
        "[overrides]",
        "plan +exp=demo +cluster=nvidia_h100 cluster.num_nodes=4",
        (_CONFIG_DIR, _JSON),
        details="Exit code 2 when submit would refuse it, by what this machine sees; a cluster is not asked.\n\n"
        + _OVERRIDES,
    ),
    "explain": Verb(
        "what a run will do, in one screen: what, where, why so, memory, files, and what ends it",
        "[overrides]",
        "explain +exp=demo +cluster=nvidia_h100 cluster.num_nodes=4",
        (_CONFIG_DIR,),
        details="An impossible layout is refused, with what would fit; files are looked at by `plan` and `submit`.\n\n"
        + _OVERRIDES,
    ),
    "config": Verb(
        "what can be set: sections, the keys of one, or all of one key; +group: the presets of a group",
        "[section | key | +group] [overrides]",
        "config optim +exp=demo",
        (_CONFIG_DIR,),
        details="With overrides: the values that they make, beside the defaults.\n\n" + _OVERRIDES,
    ),
    "completion": Verb(
        "what bash and zsh complete our words by: verbs, flags, presets, keys and their values",
        "",
        "completion",
        (_CONFIG_DIR,),
        details='In ~/.bashrc or ~/.zshrc: eval "$(python -m slurm_rl completion)"'
        "\nIt holds for `python -m slurm_rl` and `slurm-rl`, and knows the presets that are there when it is made.",
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
        "state of a run, or of all runs under a folder (--svg: the table as a picture)",
        "[run | sweep | folder]",
        "status runs",
        (flag("--svg", type=Path, metavar="FILE", help="draw the table of a pipeline, a sweep or a folder, too"),),
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
    "episodes": Verb(
        "print what the policy wrote, turn by turn, with rewards",
        "[run]",
        "episodes --step 40",
        (flag("--step", type=int, help="of this step; the newest by default"),),
        details=_RUN,
    ),
    "tunnel": Verb(
        "the ssh forward to a run's Ray dashboard and TensorBoard (--open)",
        "[run]",
        "tunnel --open",
        (
            switch("--open", help="open it, until Ctrl-C; TensorBoard starts here"),
            flag("--port", type=parse_port, default=8265, help="of the dashboard here; 8265 by default"),
            flag("--tensorboard-port", type=parse_port, default=6006, metavar="PORT", help="6006 by default"),
        ),
        details=_RUN,
    ),
    "attach": Verb(
        "a shell on a node of a running run, in its container (--node, -- command)",
        "[run] [-- command]",
        "attach --node 1 -- nvidia-smi",
        (flag("--node", type=int, default=0, metavar="RANK", help="0, the head, by default"),),
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
    "nodes": Verb(
        "the nodes that are remembered as bad, and why; clear one, or keep one out",
        "[list | clear <node>... | add <node>...]",
        "nodes clear n17 --site-dir /shared/site",
        (
            flag("--site-dir", metavar="DIR", help="the site's memory (cluster.site_dir); that of the run by default"),
            flag("--run", metavar="DIR", help="the run's own; the run submitted last without --site-dir"),
            flag("--why", help="add: what is wrong with it"),
            flag("--days", type=parse_positive, default=7.0, help="add: how long, if it is not booted before; 7"),
            _JSON,
        ),
        details="What is remembered, for how long and what follows: docs/reference/node-checks.md.",
    ),
    "results": Verb(
        "the runs of a sweep (-m), best first (--metric, --min, --json)",
        "[sweep]",
        "results --metric reward/mean",
        (
            flag("--metric", help="key of metrics.jsonl, or dotted path in the summary; the sweep's by default"),
            switch("--min", help="less is better", **_ORDER),
            flag("--max", action="store_false", help="more is better", **_ORDER),
            _JSON,
        ),
        details="sweep: its directory or its name; without one, the sweep that you submitted last",
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
    "reward-server": Verb(
        "answer OpenRLHF's reward requests (--host, --port; reward.* overrides)",
        "[reward.* overrides]",
        "reward-server --host 0.0.0.0 --port 5000 +reward=math_format reward.num_workers=16",
        (
            _CONFIG_DIR,
            flag("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all"),
            flag("--port", type=parse_server_port, default=5000, help="0 takes a free one and prints it"),
            flag(
                "--token-file", type=Path, help="mode 0600; else the variable SLURM_RL_REWARD_TOKEN", not_with="token"
            ),
            switch("--no-token", help="everybody who reaches the port may ask", not_with="token"),
            flag("--answers", type=Path, help=".jsonl with the answers, for clients that send no labels"),
            flag("--prompt-key", default="prompt", help="column of --answers that clients send under prompts"),
            flag("--answer-key", default="answer", help="column of --answers with the reference answer"),
            flag("--failure-reward", type=parse_finite, default=0.0, help="what other clients get for a failed item"),
        ),
        details="A run asks it with reward.url=http://<host>:5000/get_reward. So does OpenRLHF, with --remote_rm_url:"
        "\nthe token as the password in the address, http://any:<token>@<host>:5000/get_reward, or --no-token here."
        "\nA token of your own: export SLURM_RL_REWARD_TOKEN=$(openssl rand -hex 16)",
    ),
    "export": Verb(
        "the same run as a .dstack.yml (dstack), or as the xpk command (xpk)",
        "dstack|xpk [overrides]",
        "export dstack +exp=demo +cluster=dstack --out train.dstack.yml",
        (
            _CONFIG_DIR,
            flag("--out", metavar="FILE", help="in place of standard output"),
            flag("--image", help="Docker reference, in place of container.image"),
            flag("--volume", action="append", default=[], metavar="V:/PATH", help="dstack: a folder or network volume"),
            flag("--cluster", help="xpk: name of the GKE cluster"),
            flag("--tpu-type", metavar="TYPE", help="xpk: such as v5p-128"),
            flag("--project", help="xpk: Google Cloud project"),
            flag("--num-slices", type=int, default=1, metavar="N", help="xpk: slices of that type"),
            flag("--priority", choices=_PRIORITIES, default="medium", help="xpk: medium by default"),
        ),
        details=_OVERRIDES,
    ),
    "goodput": Verb(
        "where the GPU-time of a run went, or of all runs below a folder, or of a month (--since, --json, --svg)",
        "[run | folder] ...",
        "goodput runs --since 30d",
        (
            flag("--since", metavar="DAY", help="leave out what was before: 2026-11-01, or 30d for so many days"),
            _JSON,
            flag("--svg", type=Path, metavar="FILE", help="draw the bar of all of them together, too"),
            flag("--accounting", action="store_true", help="hold times by Slurm's accounting (sacct), to its second"),
        ),
        details="run | folder: ./runs when none is named. Run directories alone are read: no cluster is asked without "
        "--accounting.",
    ),
    "report": Verb(
        "write summary.json and report.html of a run again; of a sweep, report.html with its leaderboard and curves",
        "[run | sweep]",
        "report runs/addition-20261121-101500",
        details=_RUN,
    ),
}
