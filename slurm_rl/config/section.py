"""Base class and field types of the config sections."""

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
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, lt=1)]
NonEmpty = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class _OneOf(AfterValidator):
    """A validator that also adds the accepted names to the JSON schema."""

    names: tuple[str, ...]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self.names)}


def one_of(names: Collection[str], *, or_file: bool = False) -> AfterValidator:
    """Accept one of `names`; with `or_file` also a user's `file.py:name`."""
    known = (*names, *(["file.py:name"] if or_file else []))

    def check(value: str) -> str:
        if value not in names and not (or_file and is_file(value)):
            raise ValueError(f"must be one of {', '.join(known)}; got {value!r}")
        return value

    return _OneOf(check, known)


def file_of(key: str) -> AfterValidator:
    """Accept only `file.py:name`; `key` names the field in the error."""

    def check(value: str) -> None:
        if not is_file(value):
            raise ValueError(f"{key} must be file.py:name; got {value!r}")

    return checked_by(check)


def checked_by(check: Callable[[Any], object]) -> AfterValidator:
    """Return the value unchanged unless `check` raises ValueError."""

    def keep(value: Any) -> Any:
        check(value)
        return value

    return AfterValidator(keep)


class Section(BaseModel):
    """A frozen part of the config. Unknown keys are errors; the string under each field is its help text."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        # YAML has typed the values already, so only numbers of another type are converted.
        strict=False,
        # Infinity passes a bound such as > 0.
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    def problems(self) -> Iterator[str]:
        """Yield faults that a type cannot express, each as rule, value and next action."""
        yield from ()

    @model_validator(mode="after")
    def _has_no_problem(self) -> Self:
        for problem in self.problems():
            raise ValueError(problem)
        return self
