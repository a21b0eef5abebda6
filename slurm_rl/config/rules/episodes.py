"""Rules of sources, evaluation sets and environments."""

from collections.abc import Iterator

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import each_set, each_source


def part_problems(config: RunConfig) -> Iterator[str]:
    """Check sampling, scoring and environment of the run, or of each source, and of each evaluation set."""
    if len({env.schedule for env in config.environments if env.is_on and env.agent_command is None}) > 1:
        yield "env.schedule must be the same for all environments of a run; got async and lockstep. Next: choose one"
    parts = {f"data.sources.{name}" if name else "": one for name, one in each_source(config).items()}
    parts |= {f"eval.sets.{name}": one for name, one in each_set(config).items()}
    for key, one in parts.items():
        prefix = f"{key}: " if key else ""
        if key and not one.data.train:
            name = "data" if key.startswith("eval") else "train"
            yield f"{key}.{name} must name its rows; got nothing. Next: name a file, or remove the entry"
        if one.rollout.max_tokens > config.rollout.max_tokens:
            yield (
                f"{prefix}max_tokens must be at most rollout.max_tokens, for which engines have memory; got "
                f"{one.rollout.max_tokens} > {config.rollout.max_tokens}. Next: raise rollout.max_tokens"
            )
        if key and one.reward.service.enabled and one.reward is not config.reward:
            yield (
                f"{prefix}reward.service.enabled is for the reward of the whole run. Next: reward.url of your own "
                "service, or leave it out"
            )
        if key and one.reward.judge.server.model and one.reward is not config.reward:
            yield (
                f"{prefix}reward.judge.server is for the reward of the whole run. Next: reward.judge.url of your own "
                "server, or leave it out"
            )
        if key and one.reward.model.beside_critic:
            yield f"{prefix}reward.model.device=critic cannot score only one source. Next: reward.model.device=cpu"
        yield from (f"{prefix}{problem}" for problem in _environment_problems(one))


def _environment_problems(config: RunConfig) -> Iterator[str]:
    env, rollout = config.env, config.rollout
    kinds = {"env.name": env.name, "env.agent_command": env.agent_command, "env.tools": env.tools}
    named = [key for key, value in kinds.items() if value is not None]
    if len(named) > 1:
        yield f"an episode has one environment; got {' and '.join(named)}. Next: leave one out"
    if not env.is_on:
        if env != EnvironmentConfig():
            yield (
                "the keys of env need env.name, env.tools or env.agent_command. Next: env.name=file.py:Name, or "
                "leave them "
                "out"
            )
        if config.data.info_keys:
            yield (
                "data.info_keys are for env.name or env.agent_command, and there is none; got "
                f"{', '.join(config.data.info_keys)}. Next: env.name=file.py:Name, or leave them out"
            )
        return
    yield from _tool_problems(config)
    if env.context == "rerendered" and (env.name is None or not config.data.chat_template):
        yield (
            "env.context=rerendered needs env.name, and data.chat_template=true to render the dialogue; "
            f"got env.name={env.name} and {str(config.data.chat_template).lower()}. Next: env.context=kept"
        )
    if env.turn_tokens is None or env.turn_tokens > rollout.max_tokens:
        yield (
            "env.turn_tokens must be set, and at most rollout.max_tokens, which bounds the episode; got "
            f"{env.turn_tokens} and {rollout.max_tokens}. Next: env.turn_tokens={rollout.max_tokens} or less"
        )
    yield from _order_problems(config)
    if config.reward.model.beside_critic:
        yield f"{named[0]} and reward.model.device=critic do not go together. Next: reward.model.device=cpu"


def _order_problems(config: RunConfig) -> Iterator[str]:
    env, rollout = config.env, config.rollout
    if env.agent_command is not None:
        if rollout.inflight_weight_updates:
            yield (
                "env.agent_command needs rollout.inflight_weight_updates=false, since new weights would arrive "
                "within an episode; "
                "got true. Next: leave it out; with rollout.max_off_policy_steps weights wait for programs"
            )
        if env.schedule == "async":
            yield "env.schedule=async is for env.name; agent programs are always asynchronous. Next: leave it out"
    elif rollout.inflight_weight_updates != (env.schedule == "async" and rollout.max_off_policy_steps > 0):
        yield (
            "with rollout.max_off_policy_steps above 0, env.schedule=async needs "
            "rollout.inflight_weight_updates=true, and env.schedule=lockstep "
            f"needs false; got env.schedule={env.schedule}, "
            f"rollout.max_off_policy_steps={rollout.max_off_policy_steps} and "
            f"rollout.inflight_weight_updates={str(rollout.inflight_weight_updates).lower()}. Next: "
            + (
                "env.schedule=async"
                if rollout.inflight_weight_updates
                else "rollout.inflight_weight_updates=true, or env.schedule=lockstep"
            )
        )


def _tool_problems(config: RunConfig) -> Iterator[str]:
    env = config.env
    if env.tools is None:
        if env.tool_parser is not None and env.agent_command is None:
            yield "env.tool_parser is for env.tools and env.agent_command. Next: env.tools=file.py, or leave it out"
        return
    if not config.data.chat_template:
        yield "env.tools needs data.chat_template=true, since the template describes the tools to the model; got false"
    if env.tool_timeout_s >= env.timeout_s:
        yield (
            "env.tool_timeout_s must be < env.timeout_s, or a late call would fail its episode; got "
            f"{env.tool_timeout_s:g} and {env.timeout_s:g}. Next: env.timeout_s={2 * env.tool_timeout_s:g}"
        )
