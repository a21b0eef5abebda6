"""The data sets `prepare` knows. Add one: a file with a `DatasetRecipe`, and its row here."""

from typing import Final

from slurm_rl.plugins.prepare.dataset import DatasetRecipe
from slurm_rl.plugins.prepare.recipes import gsm8k, math, mathv60k

RECIPES: Final[dict[str, DatasetRecipe]] = {
    recipe.name: recipe for recipe in (mathv60k.RECIPE, gsm8k.RECIPE, math.RECIPE)
}
