"""The base of every config section: frozen, and an unknown key is an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from slurm_rl.config.user_files.load import is_file

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
TopP = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, lt=1)]
NonEmpty = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class _OneOf(AfterValidator):
    """A check that also says in the schema what it takes."""

    names: tuple[str, ...]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self.names)}


def one_of(names: Collection[str], *, or_file: bool = False) -> AfterValidator:
    """A name of a table; with `or_file` also a user's `file.py:name`."""
    known = (*names, *(["file.py:name"] if or_file else []))

    def check(value: str) -> str:
        if value not in names and not (or_file and is_file(value)):
            raise ValueError(f"must be one of {', '.join(known)}; got {value!r}")
        return value

    return _OneOf(check, known)


def checked_by(check: Callable[[Any], object]) -> AfterValidator:
    """The value as it is, when `check` raises no ValueError of it."""

    def keep(value: Any) -> Any:
        check(value)
        return value

    return AfterValidator(keep)


class Section(BaseModel):
    """A part of the config. The string under each field is its help text."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        # YAML already typed the values; silently turning "8" or 8.0 into 8 would hide a typo.
        strict=False,
        # A bound such as > 0 lets infinity pass, which no number of a config may be.
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    def problems(self) -> Iterator[str]:
        """What no type can say: rule, value seen, next action."""
        yield from ()

    @model_validator(mode="after")
    def _has_no_problem(self) -> Self:
        for problem in self.problems():
            raise ValueError(problem)
        return self
