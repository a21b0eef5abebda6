"""A run of agent programs that may be killed, with the engine of killed_episodes.py: SIGKILL at its n-th request.

In addition to the journal it writes `asked`, `judged`, `events`, and `effects` with one line per action and episode.
If the file `changed` exists, programs behave differently after their first reply. With kind `ahead`, a batch is
sampled while the previous one trains, and weights wait for it.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.envs.facts import Facts
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rollout.agents import AgentRollouts
from slurm_rl.rollout.endpoint.episode import Bounds
from slurm_rl.rollout.endpoint.programs import find_argv
from slurm_rl.rollout.endpoint.requests import SamplingRule
from slurm_rl.rollout.turn_log import PROGRAM, TurnLog
from slurm_rl.run_dir.run_dir import write_json
from slurm_rl.trainers.grpo.rollout_files import load_rollouts, save_rollouts
from tests.unit.rl.batch_kit import make_queue
from tests.unit.rl.episode_kit import SPEC, sampler_of
from tests.unit.rl.killed_episodes import Watched, WatchedEngine
from tests.unit.rollout.endpoint.kit import make_renderer

STEPS = 4
# Eight replies: one, two in parallel, a dialogue after each of these in parallel, and a final one.
PLAY = """
import json, os, sys, threading, urllib.request
from pathlib import Path

FOLDER = Path(sys.argv[1])

def note(row, what):
    with (FOLDER / "effects").open("a") as file:
        file.write(f"{os.environ['SLURM_RL_EPISODE'] if not sys.argv[2:] else row['episode']} {what}\\n")

def play(row):
    note(row, "began")
    def ask(messages, **more):
        request = urllib.request.Request(row["base_url"] + "/chat/completions",
            json.dumps({"model": "policy", "messages": messages, **more}).encode(),
            {"Authorization": "Bearer " + row["api_key"]})
        return [it["message"]["content"] for it in json.load(urllib.request.urlopen(request))["choices"]]
    def extend(messages, reply, said):
        return [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": said}]
    first = [{"role": "user", "content": row["prompt"]}]
    second = extend(first, *ask(first), "other" if (FOLDER / "changed").exists() else "no")
    found, threads = {}, []
    def talk(place, reply):
        messages = extend(second, reply, "so")
        if place:
            reply, = ask(messages, max_tokens=3)
        else:
            reply, = ask(messages, stop=["h"])
        found[place] = ask(extend(messages, reply, "and"))
    for place, reply in enumerate(ask(second, n=2)):
        threads.append(threading.Thread(target=talk, args=(place, reply)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    last, = ask([{"role": "user", "content": "sum up"}])
    note(row, "ended")
    if row["answer"] == "fails":
        raise ValueError("as it is told to")
    return {"reward": None} if row["answer"] == "judged" else {"reward": float(len(last)), "scores": {"turns": 7}}
"""
ONCE = """
row = json.load(sys.stdin)
verdict = play({**row, "base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]})
if verdict["reward"] is not None: print(json.dumps(verdict))
"""
STAYS = """
def run(row):
    try:
        verdict = play(row)
    except ValueError as error:
        verdict = {"error": str(error)}
    sys.stdout.write(json.dumps({"episode": row["episode"], **verdict}) + "\\n"); sys.stdout.flush()
for line in sys.stdin: threading.Thread(target=run, args=(json.loads(line),)).start()
"""
# Played by the adapter: effects are named by the row's seed, since an environment does not know its episode.
WORLD = """
class World:
    def __init__(self, folder):
        self.folder, self.actions = folder, []
    def reset(self, *, seed=None, options=None):
        with open(f"{self.folder}/effects", "a") as file:
            file.write(f"{seed} began\\n")
        return "!", {}
    def step(self, action):
        self.actions.append(action)
        return "no", float(len(action)), len(self.actions) == 4, False, {}
"""
ANSWERS = ["", "judged", "fails"]


class Scorer:
    def __init__(self, file: Path) -> None:
        self.file = file

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        with self.file.open("a") as file:
            file.writelines(f"{item.completion}\n" for item in items)
        return [RewardResult(item=item, value=len(item.completion) / 4) for item in items]


def build_argv(folder: Path, kind: str) -> tuple[list[str], int]:
    """Return the program's arguments, and the number of concurrent rows."""
    if kind == "adapter":
        (folder / "world.py").write_text(WORLD)
        words = ["--words", json.dumps({"folder": str(folder)})]
        return find_argv([sys.executable, "adapter:gymnasium", f"{folder / 'world.py'}:World", *words]), 2
    file = folder / "agent.py"
    file.write_text(PLAY + (ONCE if kind == "once" else STAYS))
    return [sys.executable, str(file), str(folder), *([] if kind == "once" else ["stays"])], 2 * (kind != "once")


def main(folder: Path, kind: str, kill_at: int) -> None:
    saved = folder / "checkpoint.json"
    state: dict[str, Any] = json.loads(saved.read_text()) if saved.is_file() else {"step": 0, "found": []}

    def report(what: str, **fields: Any) -> None:
        with (folder / "events").open("a") as file:
            file.write(json.dumps({"kind": what, **fields}) + "\n")

    ahead = int(kind == "ahead")
    journal = TurnLog(folder / "journal", Facts(PROGRAM, ""), keeps_all=False, staleness=ahead, report=report)
    journal.resume(state["step"], None)
    engine, (argv, rows) = WatchedEngine(Watched(folder / "asked", kill_at)), build_argv(folder, kind)
    programs = AgentRollouts(
        sampler_of(engine),
        make_renderer(chat=False),
        SamplingRule(1.0, 1.0, 4),
        Bounds(10, 200),
        Scorer(folder / "judged"),
        argv=argv,
        at_once=4,
        rows=rows,
        timeout_s=300.0,
        log=journal,
    )
    prompts = [EncodedPrompt(index=i, token_ids=[63 + i], text=chr(63 + i), answer=it) for i, it in enumerate(ANSWERS)]

    def start(step: int, _: int) -> Any:
        return programs.start(prompts, replace(SPEC, num_completions=2, seed=step + 100, batch=f"rollout-{step}"))

    source = SimpleNamespace(start=start, finish=lambda pending, within_s: programs.finish(pending, Timer(), within_s))
    queue = make_queue(source, ahead, STEPS, prompts=len(prompts), is_journalled=not ahead)
    queue.restore(load_rollouts(folder) if ahead else {})
    while state["step"] < STEPS:
        engine.version = state["step"]
        groups = queue.take(state["step"], Timer()).groups
        queue.wait(lambda: 300.0)
        found = [
            [
                [it.token_ids, it.logprobs, it.weight_version, repr(it.turns), repr(it.branches)]
                for it in one.completions
            ]
            + [[it.value, it.failure, it.detail[:20], dict(it.parts)] for it in one.results]
            for one in groups
        ]
        state = {"step": state["step"] + 1, "found": [*state["found"], found]}
        if state["step"] % 2 == 0:
            save_rollouts(folder, queue.drain(300.0))
            write_json(saved, state)
            journal.prune(state["step"], state["step"])
    queue.close()
    journal.close()
