"""A program with a different hostile behaviour in every second episode."""

import contextlib
import json
import os
import sys
import urllib.error
import urllib.request

row = json.load(sys.stdin)
_, place, member = map(int, os.environ["SLURM_RL_EPISODE"].split("."))


def complete(content, **more):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": [{"role": "user", "content": content}], **more}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "x-stainless-retry-count": "9" * 500},
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]


def write(text):
    print(text, flush=True)


def send_invalid_requests():
    for content, more in (([{"type": ["text"]}], {}), ("?", {"stream_options": []}), ({"a": 1}, {})):
        try:
            complete(content, **more)
            raise SystemExit("served")
        except urllib.error.HTTPError as error:
            if error.code != 400:
                raise
    raise SystemExit(5)


HOSTILE = (
    lambda: complete(""),
    lambda: write('{"reward": 1%s}' % ("0" * 400)),
    lambda: write(r'{"reward": 1, "scores": {"\ud800": 1}}'),
    lambda: write('{"reward": 1, "scores": {"a": 1%s}}' % ("0" * 400)),
    send_invalid_requests,
    lambda: os.kill(os.getpid(), 40),
    lambda: write('{"reward": 1e308}'),
    lambda: write(json.dumps({"reward": 1, "scores": dict.fromkeys(map(str, range(1000)), 1)})),
)
complete(row["prompt"])
if member % 2:
    HOSTILE[2 * place + member // 2]()
else:
    with contextlib.suppress(urllib.error.HTTPError):
        complete("7" * 2_000_000)  # longer than any context: rejected without tokenizing
    write(json.dumps({"reward": float(member), "scores": {"turns": 1}}))
