"""`python -m slurm_rl reward-server [flags] [reward.* overrides]`: a reward service outside of any run.

    export SLURM_RL_REWARD_TOKEN=$(openssl rand -hex 16)
    python -m slurm_rl reward-server --host 0.0.0.0 --port 5000 +reward=math_format reward.num_workers=16

A run asks it with reward.url=http://<host>:5000/get_reward; so does OpenRLHF, with --remote_rm_url (the token as the
password in the address, http://any:<token>@<host>:5000/get_reward, or a server started with --no-token).
"""

from __future__ import annotations

import sys

from slurm_rl.cli.words import read_words
from slurm_rl.config.load import load_config
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.user_files.load import import_heavy
from slurm_rl.config.user_files.read import read_function
from slurm_rl.config.user_parts import FORMS
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.model_checks import check_reward_model


def run(words: list[str]) -> int:
    told = read_words("reward-server", words)
    args = told.flags
    rule = "reward-server needs the reward workers' packages"
    service = import_heavy("slurm_rl.rewards.service", rule)
    config = configure(told.rest, args.config_dir)
    token = None if args.no_token else service.read_token(args.token_file)
    answers = service.read_answers(args.answers, args.prompt_key, args.answer_key) if args.answers else None
    if args.no_token:
        print("reward service: no token, everybody who reaches the port may ask", file=sys.stderr)
    listener = service.listen(args.host, args.port)
    return int(service.serve(config, listener, token=token, failure_reward=args.failure_reward, answers=answers))


def configure(overrides: list[str], config_dir: str | None) -> RewardConfig:
    """The reward section of these overrides.

    Raises:
        ConfigError: one that is not of the form reward.key=value or +reward=preset, or a service of others.
    """
    for word in overrides:
        if not word.lstrip("+~").startswith(("reward.", "reward=")):
            raise ConfigError(
                "a reward server takes overrides of reward alone", seen=word, action="see reward-server --help"
            )
    config = load_config(overrides, config_dir=config_dir, is_run=False).reward
    if not config.names_a_scorer:
        raise ConfigError("a reward server must be given a reward", seen="none", action="+reward=math")
    if config.url is not None:
        raise ConfigError("a reward server scores by itself", seen=f"reward.url={config.url}", action="unset it")
    check_reward_model(config.model, chat_template=None)
    if config.function is not None:
        read_function(config.function, FORMS["reward.function"])
    return config
