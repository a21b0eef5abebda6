"""Name, type, default and meaning of every key, from the JSON schema of the pydantic models."""

import difflib
import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_rl.config.run import RunConfig

Schema = Mapping[str, Any]
_WORDS = {"boolean": "true or false", "integer": "integer", "number": "number", "string": "text", "null": "null"}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_UNITS = {"_s": "seconds"}
"""Suffix of a name -> its unit."""


@dataclass(frozen=True)
class Key:
    """A field of a section, or a section."""

    name: str
    """Dotted name: optim.lr."""
    meaning: str
    """Docstring of the field, on one line."""
    type: str
    """Readable type: `integer >= 1, or null`; `section` or `section, or null` for a section."""
    default: Any
    """JSON value; None for required keys and sections."""
    details: str = ""
    """Docstring of a section's class."""
    choices: tuple[str, ...] = ()
    """Named values: rows of a table, true, false and null."""

    @property
    def is_section(self) -> bool:
        return self.type.startswith("section")

    @property
    def is_table(self) -> bool:
        """Whether it holds entries with arbitrary names."""
        return self.type.startswith("table")


@functools.cache
def list_keys() -> dict[str, Key]:
    """Return all keys and sections by dotted name, each section before its keys.

    >>> list_keys()["optim.lr"]
    Key(name='optim.lr', meaning='Peak learning rate.', type='number > 0', default=1e-06, details='', choices=())
    """
    schema = _schema()
    return {key.name: key for key in _walk(schema, {}, schema["$defs"], "")}


def has_key(key: str) -> bool:
    """Return whether the key exists, including entries of tables, which `list_keys` does not have.

    >>> has_key("data.sources.games.env.timeout_s"), has_key("data.sources.games.env.timeout")
    (True, False)
    """
    return _find_field(key) is not None


def takes_text(key: str) -> bool:
    """Return whether a key or table entry holds text, or a list or table of text, but no numbers.

    >>> [takes_text(key) for key in ("cluster.env.A", "cluster.setup", "optim.lr", "external.args.lr")]
    [True, True, False, False]
    """
    field = _find_field(key)
    if field is None:
        return False
    described = describe_type(field, _schema()["$defs"])
    return re.search(r"\btext\b", described) is not None and "number" not in described


@functools.cache
def _schema() -> Schema:
    return RunConfig.model_json_schema()


def _find_field(key: str) -> Schema | None:
    section: Schema = _schema()
    for part in key.split("."):
        [entries] = section.get("patternProperties", {"": section.get("additionalProperties")}).values()
        field = section["properties"].get(part) if "properties" in section else entries
        if not isinstance(field, dict):
            return None
        section = _find_section(field, _schema()["$defs"]) or field
    return section


def _walk(section: Schema, defaults: Mapping[str, Any], models: Mapping[str, Schema], prefix: str) -> Iterator[Key]:
    for name, field in section["properties"].items():
        default = defaults.get(name, field.get("default"))
        below = _find_section(field, models)
        meaning = " ".join(field.get("description", "").split())
        if below is None:
            units = [f", {unit}" for end, unit in _UNITS.items() if name.endswith(end)]
            yield Key(
                prefix + name,
                meaning,
                "".join([describe_type(field, models), *units]),
                default,
                choices=_list_choices(field),
            )
            continue
        kind, details = "section, or null" if "anyOf" in field else "section", _first_paragraph(below)
        # pydantic omits a description that equals the class docstring.
        yield Key(prefix + name, meaning or details, kind, None, details)
        yield from _walk(below, default or {}, models, f"{prefix}{name}.")


def _find_section(field: Schema, models: Mapping[str, Schema]) -> Schema | None:
    for option in field.get("anyOf", [field]):
        model = models.get(option.get("$ref", "").rpartition("/")[2])
        if model is not None and "properties" in model:
            return model
    return None


def _first_paragraph(model: Schema) -> str:
    return " ".join(model.get("description", "").partition("\n\n")[0].split())


def _list_choices(field: Schema) -> tuple[str, ...]:
    found: list[str] = []
    for option in field.get("anyOf", [field]):
        named = {"boolean": ["true", "false"], "null": ["null"]}.get(option.get("type", ""), [])
        found += [*option.get("enum", named), *([option["const"]] if "const" in option else [])]
    # For a number or text, null as the only choice would not help.
    return tuple(found) if set(found) - {"null"} else ()


def describe_type(schema: Schema, models: Mapping[str, Schema]) -> str:
    """Return a readable type.

    >>> describe_type({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, {})
    'integer >= 1, or null'
    >>> describe_type({"enum": ["auto", "ray"], "type": "string"}, {})
    'one of auto, ray'
    """
    if "anyOf" in schema:
        *most, last = [describe_type(option, models).replace(" or ", ", ") for option in schema["anyOf"]]
        return f"{', '.join(most)}, or {last}"
    if "$ref" in schema:
        model = models[schema["$ref"].rpartition("/")[2]]
        return f"{{{', '.join(model['properties'])}}}" if "properties" in model else "table"
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        fixed = schema.get("prefixItems")
        each = describe_type(fixed[0] if fixed else schema["items"], models)
        return f"{len(fixed)} in a list, each {each}" if fixed else f"list of {each}"
    if schema.get("type") == "object":
        return _describe_table(schema, models)
    bounds = [f"{sign} {schema[bound]:g}" for bound, sign in _BOUNDS.items() if bound in schema]
    return f"{_WORDS[schema['type']]} {' and '.join(bounds)}".strip()


def _describe_table(schema: Schema, models: Mapping[str, Schema]) -> str:
    values = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    # Arguments of external programs may be anything.
    is_known = isinstance(values[0], dict) and len(values[0].get("anyOf", [])) <= 3
    names = schema.get("propertyNames", {}).get("enum", [])
    of, each = f" of {', '.join(names)}" if names else "", describe_type(values[0], models) if is_known else ""
    return f"table{of}" + (f", each {each}" if each else "")


def show_value(value: Any) -> str:
    """Return the value as written on a command line.

    >>> show_value(None), show_value(1e-6), show_value([0.9, 0.95]), show_value("bfloat16")
    ('null', '1e-06', '[0.9, 0.95]', 'bfloat16')
    """
    return value if isinstance(value, str) and value else json.dumps(value)


def nearest_keys(key: str) -> list[str]:
    """Return likely intended keys: those that end in `key`, a similar sibling, the same name in another section.

    >>> nearest_keys("optim.lrr"), nearest_keys("lr")
    (['optim.lr'], ['optim.lr', 'critic.optim.lr', 'warmup.optim.lr'])
    >>> nearest_keys("cluster.time_limit"), nearest_keys("cluster.slurm.hold")
    (['job.time_limit', 'eval.job.time_limit'], [])
    """
    known = list(list_keys())
    section, _, last = key.rpartition(".")
    if inside := [name for name in known if name.endswith(f".{key}")]:
        return inside
    siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == section}
    # Limit the quadratic comparison.
    if near := difflib.get_close_matches(last[:100], siblings, n=1, cutoff=0.6):
        return [siblings[near[0]]]
    if elsewhere := [name for name in known if name.endswith(f".{last}")][:3]:
        return elsewhere
    # The common prefix of keys in one section is not similarity.
    return [] if siblings else difflib.get_close_matches(key[:100], known, n=1, cutoff=0.5)
