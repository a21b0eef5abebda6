"""`python -m slurm_rl.rewards.server [flags] [reward.* overrides]`: a reward service outside of a run.

    export SLURM_RL_REWARD_TOKEN=$(openssl rand -hex 16)
    python -m slurm_rl.rewards.server --host 0.0.0.0 --port 5000 +reward=math_format reward.num_workers=16

A run asks it with reward.url=http://<host>:5000/get_reward; so does OpenRLHF, with --remote_rm_url (the token as the
password in the address, http://any:<token>@<host>:5000/get_reward, or a server started with --no-token).
"""

import argparse
import sys
from pathlib import Path

from slurm_rl.cli.output import catch_errors
from slurm_rl.cli.parser import Parser, parse_finite, parse_port
from slurm_rl.config.load import load_config
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.user_files.load import import_heavy
from slurm_rl.config.user_files.read import read_function
from slurm_rl.config.user_parts import FORMS
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.model_checks import check_reward_model


def main() -> int:
    return catch_errors(lambda: run(sys.argv[1:]))


def run(words: list[str]) -> int:
    args, overrides = _build_parser().parse_known_args(words)
    rule = "the reward server needs the reward workers' packages"
    service = import_heavy("slurm_rl.rewards.service", rule)
    config = configure(overrides, args.config_dir)
    token = None if args.no_token else service.read_token(args.token_file)
    answers = service.read_answers(args.answers, args.prompt_key, args.answer_key) if args.answers else None
    if args.no_token:
        print("reward service: no token, so every client that reaches the port is served", file=sys.stderr)
    listener = service.listen(args.host, args.port)
    return int(service.serve(config, listener, token=token, failure_reward=args.failure_reward, answers=answers))


def _parse_port(text: str) -> int:
    return 0 if text == "0" else parse_port(text)


def _build_parser() -> Parser:
    parser = Parser(
        prog="python -m slurm_rl.rewards.server",
        usage="%(prog)s [flags] [reward.* overrides]",
        description="Serve OpenRLHF's reward requests, and those of runs with reward.url.",
        epilog="example:\n  python -m slurm_rl.rewards.server --host 0.0.0.0 --port 5000 +reward=math_format",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config-dir", metavar="DIR", help="a folder with presets of your own")
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all")
    add("--port", type=_parse_port, default=5000, help="0 takes a free one and prints it")
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token-file", type=Path, help="mode 0600; else the variable SLURM_RL_REWARD_TOKEN")
    token.add_argument("--no-token", action="store_true", help="serve every client that reaches the port")
    add("--answers", type=Path, help=".jsonl with the answers, for clients that send no labels")
    add("--prompt-key", default="prompt", help="column of --answers that clients send under prompts")
    add("--answer-key", default="answer", help="column of --answers with the reference answer")
    add("--failure-reward", type=parse_finite, default=0.0, help="reward of a failed item, for other clients")
    return parser


def configure(overrides: list[str], config_dir: str | None) -> RewardConfig:
    """The reward section of these overrides.

    Raises:
        ConfigError: one that is not of the form reward.key=value or +reward=preset, or a service of others.
    """
    for word in overrides:
        if not word.lstrip("+~").startswith(("reward.", "reward=")):
            raise ConfigError(
                "a reward server accepts only overrides of reward",
                seen=word,
                action="see python -m slurm_rl.rewards.server --help",
            )
    config = load_config(overrides, config_dir=config_dir, is_run=False).reward
    if not config.names_a_scorer:
        raise ConfigError("a reward server needs a reward", seen="none", action="+reward=math")
    if config.url is not None:
        raise ConfigError(
            "a reward server cannot use another reward service", seen=f"reward.url={config.url}", action="unset it"
        )
    if config.judge.is_on:
        raise ConfigError(
            "a reward server scores by itself; a run reaches the API of a judge without one",
            seen=f"the judge {config.judge.model_name}",
            action="set reward.judge in the run",
        )
    check_reward_model(config.model, chat_template=None)
    if config.function is not None:
        read_function(config.function, FORMS["reward.function"])
    return config
