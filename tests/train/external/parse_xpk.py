"""Parse a command line with xpk's own argparse, without requests to Google; print the arguments as JSON.

    parse_xpk.py <folder of the package> <arguments of xpk>

Parsers and list of TPUs are the release's; the functions they would call are replaced.
"""

import argparse
import json
import sys

from heavy import Replacer  # type: ignore[import-not-found]

REAL = ("xpk", "xpk.parser", "xpk.core", "xpk.utils")
READ = ("xpk.parser.", "xpk.core.system_characteristics", "xpk.utils.feature_flags", "xpk.utils.topology")


def _is_heavy(name: str) -> bool:
    is_theirs = name.startswith("xpk.") and name not in REAL and not name.startswith(READ)
    return is_theirs or name.split(".")[0] == "argcomplete"


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.insert(0, Replacer(_is_heavy))
    from xpk.parser.workload import set_workload_parsers

    parser = argparse.ArgumentParser("xpk")
    set_workload_parsers(parser.add_subparsers(dest="command").add_parser("workload"))
    seen = vars(parser.parse_args(sys.argv[2:]))
    print(json.dumps(seen, default=str))


if __name__ == "__main__":
    main()
