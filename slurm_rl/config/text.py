"""Field types of text that goes to Slurm, a shell or the environment."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from slurm_rl.config.section import checked_by


def _check_one_line(text: str) -> None:
    if not text.isprintable():
        raise ValueError(f"it must be one line without control characters; got {text!r}")


def _check_no_nul(text: str) -> None:
    if "\0" in text:
        raise ValueError(f"it must not contain NUL characters; got {text!r}")


def _to_text(value: object) -> object:
    """Convert an integer to text, since YAML and Hydra read an account 1234 as a number.

    Raises:
        ValueError: a float or a boolean, which have several spellings: 1.10 and 1.1, true and True.
    """
    if isinstance(value, bool | float):
        kind = "true or false" if isinstance(value, bool) else "a number"
        raise ValueError(f"this key needs text, and without quotes the value is {kind}; got {value!r}. Next: {_QUOTES}")
    return str(value) if isinstance(value, int) else value


_QUOTES = """put it in quotes: key: "1.10" in YAML, "key='1.10'" on the command line"""
OneLine = Annotated[str, BeforeValidator(_to_text), checked_by(_check_one_line)]
# Shell lines and values of variables may have several lines.
Text = Annotated[str, BeforeValidator(_to_text), checked_by(_check_no_nul)]
NodeGroupName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.:-]*$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
