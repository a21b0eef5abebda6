"""Parse command lines with the parsers of TRL's installed scripts, without training.

    python parse_trl.py '[["trl.scripts.grpo", "--learning_rate", "1e-6"], ...]'

The scripts ignore unknown arguments; here these are errors. Prints one JSON line per command.
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
