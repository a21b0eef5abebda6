"""The data sets `prepare` knows. Add one: a file with a `Recipe`, and its row here."""

from __future__ import annotations

from typing import Final

from slurm_rl.prepare.recipe import Recipe
from slurm_rl.prepare.recipes import gsm8k, math, mathv60k

RECIPES: Final[dict[str, Recipe]] = {recipe.name: recipe for recipe in (mathv60k.RECIPE, gsm8k.RECIPE, math.RECIPE)}
