"""A judge as the reward of a run, or as a part of it beside verifiers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from slurm_rl.config.reward import RewardConfig
from slurm_rl.plugins.judge.scorer import open_judge
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.run_dir.run_dir import RunDir


@contextmanager
def open_judged_reward(
    config: RewardConfig,
    run: RunDir,
    open_verifiers: Callable[[], AbstractContextManager[Scorer]],
    urls: Sequence[str] = (),
    token: str | None = None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Scorer]:
    """Open the judge, and the verifiers if reward.judge.weight is set. See `open_judge` for the other arguments."""
    with open_judge(config.judge, run, urls, token, check) as judge:
        if config.judge.weight is None:
            yield judge
            return
        with open_verifiers() as verifiers:
            yield Mixture(verifiers, judge, config.judge.weight)


class Mixture:
    """A `Scorer`: the weighted sum of verifiers and a judge. A failure of either is the failure of the reward."""

    def __init__(self, verifiers: Scorer, judge: Scorer, weight: float) -> None:
        self._verifiers, self._judge, self._weight = verifiers, judge, weight

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        """Return one result per item, in order. Items whose verifiers failed get no request to the judge."""
        results = self._verifiers.score(items)
        places = [place for place, result in enumerate(results) if result.value is not None]
        verdicts = self._judge.score([items[place] for place in places])
        for place, verdict in zip(places, verdicts, strict=True):
            results[place] = self._add(results[place], verdict)
        return results

    def _add(self, checked: RewardResult, verdict: RewardResult) -> RewardResult:
        if checked.value is None or verdict.value is None:
            return verdict
        # A number in a judge's reply must not replace the score of a verifier with its name.
        parts = verdict.parts | checked.parts
        return replace(checked, value=checked.value + self._weight * verdict.value, parts=parts)
