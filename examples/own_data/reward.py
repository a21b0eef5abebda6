"""Score one completion. Called with one item at a time, in processes of the run."""


def score(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, float]:
    """Return the share of letters in the right place, and whether all are.

    Args:
        queries: prompt with completion.
        prompts: prompt without completion.
        labels: the column `answer`.

    Returns:
        `rewards` is the training reward, `scores` is counted as accuracy; any other number is logged under its name.
    """
    completion, answer = queries[0].removeprefix(prompts[0]), labels[0]
    right = sum(one == other for one, other in zip(completion, answer, strict=False))
    return {"rewards": right / max(len(completion), len(answer)), "scores": float(completion == answer)}
