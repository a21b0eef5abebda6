"""A program with a different hostile behaviour in every second episode."""

import contextlib
import json
import os
import sys
import urllib.error
import urllib.request

row = json.load(sys.stdin)
_, place, member = map(int, os.environ["SLURM_RL_EPISODE"].split("."))


def ask(content, **more):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": [{"role": "user", "content": content}], **more}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "x-stainless-retry-count": "9" * 500},
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]


def say(text):
    print(text, flush=True)


def ask_badly():
    for content, more in (([{"type": ["text"]}], {}), ("?", {"stream_options": []}), ({"a": 1}, {})):
        try:
            ask(content, **more)
            raise SystemExit("served")
        except urllib.error.HTTPError as error:
            if error.code != 400:
                raise
    raise SystemExit(5)


HOSTILE = (
    lambda: ask(""),
    lambda: say('{"reward": 1%s}' % ("0" * 400)),
    lambda: say(r'{"reward": 1, "scores": {"\ud800": 1}}'),
    lambda: say('{"reward": 1, "scores": {"a": 1%s}}' % ("0" * 400)),
    ask_badly,
    lambda: os.kill(os.getpid(), 40),
    lambda: say('{"reward": 1e308}'),
    lambda: say(json.dumps({"reward": 1, "scores": dict.fromkeys(map(str, range(1000)), 1)})),
)
ask(row["prompt"])
if member % 2:
    HOSTILE[2 * place + member // 2]()
else:
    with contextlib.suppress(urllib.error.HTTPError):
        ask("7" * 2_000_000)  # longer than any context: rejected without tokenizing
    say(json.dumps({"reward": float(member), "scores": {"turns": 1}}))
