"""Verbs of the core and their flags. Standard library only."""

from pathlib import Path

from slurm_rl.cli.parser import Parser, Verbs, parse_port, parse_positive

OVERRIDES = """\
overrides: key=value sets a key, group=option or +group=option takes a preset (python -m slurm_rl --help
lists them); every key with its meaning: python -m slurm_rl config"""
RUN = "run: its directory, its name or its job id; without one, the run that you submitted last"
_SUBMIT = (
    "A pipeline file has one line per stage, its name and its overrides. A stage starts when the one before"
    "\nit has finished; {sft} is the directory of the stage sft:"
    "\n\n  sft: +exp=sft_tiny\n  grpo: +exp=demo model=hf model.path={sft}/export\n\n"
    f"status, cancel and resume take the folder; overrides apply to all stages.\n\n{OVERRIDES}"
)
_EVAL = (
    "run: a run of any task, by directory, name or job id; so is model.path=<run>. The model is the run's"
    "\nexport, or a checkpoint (--step), which is converted into the new run directory and needs torch here."
    "\nThe evaluation inherits the run's settings of data, rollout, reward and env; overrides win. Otherwise"
    f"\nmodel.path is a hub name or a folder. Results: status, logs, report; docs/evaluation.md.\n\n{OVERRIDES}"
)


def add_config_dir(parser: Parser) -> None:
    parser.flag("--config-dir", metavar="DIR", help="a folder with presets of your own")


def add_verbs(verbs: Verbs) -> None:
    _add_verbs_that_start_runs(verbs)
    _add_verbs_of_configs(verbs)
    _add_verbs_that_show_runs(verbs)
    _add_verbs_that_change_runs(verbs)


def _add_verbs_that_start_runs(verbs: Verbs) -> None:
    about = "start a run on this machine, or on a cluster with +cluster=...; or the stages of a pipeline file"
    example = "submit +exp=demo +cluster=nvidia_h100 cluster.slurm.partition=gpu"
    parser = verbs.add("submit", about, "[file.yaml] [overrides]", example, details=_SUBMIT)
    add_config_dir(parser)
    parser.switch("-m", "--multirun", help="a sweep: values with commas between them, optim.lr=1e-4,6e-4")
    parser.flag("--metric", needs="-m", help="-m: the metric that ranks runs and that a sweeper optimizes")
    parser.switch("--min", needs="-m", help="-m: smaller is better")
    parser.flag("--cfg", "-c", choices=["job"], help="print the composed config, start nothing")
    parser.flag("--package", "-p", needs="--cfg", help="--cfg: only this section")
    parser.flag("--dir", type=Path, metavar="DIR", help="pipeline: new folder; ./runs/<file>-<time> by default")

    about = "measure a model on sets of rows, as a separate job without training: avg@k and pass@k"
    example = "eval model=hf model.path=Qwen/Qwen3-0.6B +reward=math +eval.sets.gsm8k.data=openai/gsm8k "
    example += "+eval.sets.gsm8k.subset=main"
    parser = verbs.add("eval", about, "[run] [overrides]", example, details=_EVAL)
    add_config_dir(parser)
    parser.flag("--step", type=int, help="checkpoint of the run; its export by default, else the newest")
    parser.switch("--json", help="print the summary at the end as JSON; of a job, at once its run directory and id")

    about = "run inside the current Slurm allocation, from plain sbatch (--print-template: the script)"
    example = "run-in-job --print-template > job.sbatch"
    parser = verbs.add("run-in-job", about, "[overrides]", example, details=OVERRIDES)
    add_config_dir(parser)
    parser.switch("--print-template", help="print a script for sbatch that calls this verb")

    about = "join this machine to a run without Slurm (RunPod, GCP, dstack): the same command on each machine"
    example = "join +exp=demo +cluster=runpod --rank 0 --nodes 2"
    parser = verbs.add("join", about, "[overrides]", example, details=OVERRIDES)
    add_config_dir(parser)
    parser.flag("--run", dest="resumed", metavar="RUN", help="resume this run, on as many machines as there are now")
    parser.flag("--rank", type=int, help="0 on the head; optional on workers: the head assigns it")
    parser.flag("--nodes", type=int, help="number of nodes of the run")
    parser.flag("--head", metavar="HOST", help="name or address of node 0")
    parser.flag("--port", type=parse_port, help="port of the head; cluster.head_port by default")


def _add_verbs_of_configs(verbs: Verbs) -> None:
    about = "print a summary of a run and the errors that submit would raise (--full: also the submitted script)"
    details = "Exit code 2 if submit would refuse the run, as far as this machine, and Slurm if it answers, can check."
    details += f"\n\n{OVERRIDES}"
    example = "plan +exp=demo +cluster=nvidia_h100 cluster.num_nodes=4"
    parser = verbs.add("plan", about, "[overrides]", example, details=details)
    add_config_dir(parser)
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the submitted job as JSON")
    output.add_argument("--full", action="store_true", help="also placement, environment and the submitted script")
    output.add_argument("--as", dest="system", choices=["dstack", "xpk"], help="print it for this system")

    about = "list the sections of the config, the keys of one, or all of one key; +group: the presets of a group"
    details = f"With overrides, print the values that they set and the defaults.\n\n{OVERRIDES}"
    arguments = "[section | key | +group] [overrides]"
    parser = verbs.add("config", about, arguments, "config optim +exp=demo", details=details)
    add_config_dir(parser)
    parser.switch("--json", help="all keys, or those of the section, as JSON")


def _add_verbs_that_show_runs(verbs: Verbs) -> None:
    about = "state of a run, or of all runs in a folder; the leaderboard of a sweep"
    parser = verbs.add("status", about, "[run | sweep | folder]", "status runs", details=RUN)
    parser.flag("--metric", help="sweep: key of metrics.jsonl, or dotted path in the summary; the sweep's by default")
    order = parser.add_mutually_exclusive_group()
    for name, action, comparison in (("--min", "store_true", "smaller"), ("--max", "store_false", "larger")):
        text = f"sweep: {comparison} is better"
        order.add_argument(name, action=action, dest="smallest_first", default=None, help=text)
    parser.switch("--watch", help="print again until the run has ended (exit code 1 unless it finished), or Ctrl-C")
    parser.switch("--json", help="as JSON; with --watch one line per change")

    about = "print a run's logs (-f to follow, --who driver|node-0|ray-0)"
    parser = verbs.add("logs", about, "[run]", "logs -f --who node-0", details=RUN)
    parser.switch("-f", "--follow", help="print new lines until the run ends")
    processes = "driver, node-<rank>, ray-<rank> or torchrun-<rank>, srun, or job (of the batch job)"
    parser.flag("--who", default="driver", help=processes)

    about = "open a shell on a node of a run, in its container; --dashboard: ssh forward to Ray and TensorBoard"
    parser = verbs.add("attach", about, "[run] [-- command]", "attach --node 1 -- nvidia-smi", details=RUN)
    parser.takes_command = True
    parser.flag("--node", type=int, default=0, metavar="RANK", help="0, the head, by default")
    parser.switch("--dashboard", help="print the ssh forward to the Ray dashboard and TensorBoard")
    port = "--dashboard: local port of Ray; 8265 by default"
    parser.flag("--port", needs="--dashboard", type=parse_port, default=8265, help=port)
    board = "6006 by default"
    parser.flag("--tensorboard-port", needs="--dashboard", type=parse_port, default=6006, metavar="PORT", help=board)


def _add_verbs_that_change_runs(verbs: Verbs) -> None:
    about, example = "end a run; its checkpoints are kept", "cancel runs/addition-20261121-101500"
    verbs.add("cancel", about, "[run | sweep | job id]", example, details=RUN)

    about = "resume a run from its newest checkpoint, with another time limit if given"
    example = "resume runs/addition-20261121-101500 job.time_limit=4:00:00"
    rows = "continue although rows of the data were corrected, added or removed; recorded"
    parser = verbs.add("resume", about, "[run] [job.time_limit=...]", example, details=RUN)
    parser.switch("--accept-new-rows", help=rows)

    about = "write a checkpoint as a Hugging Face model (--step, --out)"
    parser = verbs.add("convert", about, "[run]", "convert --step 100 --out /shared/models/mine", details=RUN)
    parser.flag("--step", type=int, help="which checkpoint; the newest by default")
    parser.flag("--out", type=Path, help="new folder; <run>/export-step-<k> by default")
    size = "size of one file; 5 by default"
    parser.flag("--max-shard-gb", type=parse_positive, default=5.0, metavar="GB", help=size)
    parser.switch("--no-check", help="do not load the result to compare its logits")
