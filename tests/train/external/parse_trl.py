"""Reads command lines by the parsers of TRL's scripts, which are installed, up to the point where they train.

    python parse_trl.py '[["trl.scripts.grpo", "--learning_rate", "1e-6"], ...]'

The scripts themselves pass over what they do not know; here that is an error. Prints a line of JSON each.
"""

import importlib
import json
import sys


def main() -> None:
    for module, *words in json.loads(sys.argv[1]):
        try:
            parts = importlib.import_module(module).make_parser().parse_args_and_config(words)
            seen = {name: value for part in parts for name, value in vars(part).items()}
        except ValueError as error:
            seen = {"error": str(error)}
        print(json.dumps(seen, default=str))


if __name__ == "__main__":
    main()
