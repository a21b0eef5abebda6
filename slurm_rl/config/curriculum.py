"""Which rows are passed over for now, since the policy solves them always or never."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_rl.config.section import Fraction, PositiveInt, Section


class CurriculumConfig(Section):
    """Rows by how often the policy has solved them so far."""

    low: Fraction = 0.0
    """A row that was solved this often or less is passed over."""
    high: Fraction = 1.0
    """And so is one that was solved this often or more."""
    min_samples: PositiveInt = 8
    """Completions of a row before it is judged; until then it is taken like any other."""
    candidates: PositiveInt = 4
    """Rows looked at for one place; the first that is not passed over is taken, and where all are, the first."""
    revisit: Fraction = 0.1
    """Share of the places whose first row is taken whatever is known of it, so that a policy that has changed is asked
    again."""

    def problems(self) -> Iterator[str]:
        if self.low >= self.high:
            yield (
                f"data.curriculum.low must be below data.curriculum.high; got {self.low:g} and {self.high:g}. "
                "Next: low=0 high=1 passes over what is solved never or always"
            )
