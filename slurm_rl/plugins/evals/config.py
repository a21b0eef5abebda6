"""Config of the run that evaluates a checkpoint. Pure."""

from slurm_rl.config.inherit import inherit
from slurm_rl.config.load import section_defaults
from slurm_rl.config.parse import parse_config
from slurm_rl.config.run import RunConfig
from slurm_rl.run_dir.run_dir import RunDir

_WHOLE = ("seed", "cluster", "container", "job", "ray", "preflight")


def build_eval_config(source: RunConfig, run: RunDir, step: int) -> RunConfig:
    """Return the config, with the run's initial model, which has the shape of the checkpoint.

    Raises:
        ConfigError: such a run is not possible.
    """
    tree, values, own = section_defaults(RunConfig), source.model_dump(mode="json"), source.eval.job
    tree |= {name: values[name] for name in _WHOLE}
    inherit(tree, source, [])
    tree |= {"name": f"{source.name}-step-{step}", "run_dir": str(run.evals / f"step-{step}")}
    tree["model"] |= {"path": source.model.path or str(run.model), "from_config": None}
    tree["eval"]["only"] = True
    tree["logging"]["wandb"]["mode"] = "disabled"
    tree["cluster"] |= {"num_nodes": own.num_nodes, "nodes": {}, "topology": {}}
    if own.gpus_per_node is not None:
        tree["cluster"]["gpus_per_node"] = own.gpus_per_node
    if own.partition is not None:
        tree["cluster"]["slurm"]["partition"] = own.partition
    tree["job"] |= {"depends_on": None, "num_spare_nodes": 0}
    if own.time_limit is not None:
        tree["job"]["time_limit"] = own.time_limit
    return parse_config(tree, is_run=True)
