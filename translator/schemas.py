"""JSON schemas of tools and outputs, as OpenAI takes them: normalised always, strict on request."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Schema = dict[str, Any]

MAX_DEPTH: Final = 10
MAX_PROPERTIES: Final = 5000
"""OpenAI's limits of a strict schema."""

MAX_BRANCHES: Final = 1000
"""Union branches that are looked at; a schema of hostile making could unfold without end."""

MAX_REFERENCES: Final = 16
"""How many ``$ref`` in a row the root may hide behind; more is a circle."""


@dataclass(frozen=True, slots=True)
class StrictSchema:
    """A schema in OpenAI's strict form, and how to undo what that did to optional properties.

    ``optional`` are the paths of properties made nullable, joined by ``/`` (``*`` for the items
    of a list): a null there means that the property was left out.
    """

    schema: Schema
    optional: frozenset[str]


def normalise(schema: Any) -> Schema:
    """The schema with an object at its root, which is all that OpenAI takes there.

    A union at the root becomes an object with the properties of all its branches, of which those
    required by every branch stay required: whatever fits the original, fits this.
    """
    # Nearly every tool has neither references nor unions here: 1.3 µs so, 14 with the walk.
    if type(schema) is dict and UNFOLDING.isdisjoint(schema):
        return _plain(schema)
    return _Merging().root(schema, 0)


def strict(schema: Any) -> StrictSchema | None:
    """The schema in strict form; None when it cannot say there what it says."""
    if not isinstance(schema, dict) or any(key in schema for key in COMBINERS):
        return None
    making = _Strictness(_definitions(schema))
    try:
        made = making.object(_dereferenced(schema), "", 0)
    except _NotStrict:
        return None
    return StrictSchema(made, frozenset(making.optional))


@dataclass(slots=True)
class _Merging:
    """One walk over the unions at the root of one schema."""

    branches: int = 0

    def root(self, schema: Any, depth: int) -> Schema:
        schema = schema if isinstance(schema, dict) else {}
        if "$ref" in schema:
            schema = _dereferenced(schema)
        made = _plain(schema)
        merged: Schema = dict(made["properties"])
        required = _names(made.get("required"))
        for combiner in COMBINERS:
            if combiner not in schema:
                continue
            branches = [
                self.root(branch, depth + 1) for branch in self._of(schema, combiner, depth)
            ]
            for branch in branches:
                for name, inner in branch["properties"].items():
                    merged.setdefault(name, inner)
            required += _required_by(branches, combiner)
        made["properties"] = merged
        if required:
            made["required"] = list(dict.fromkeys(required))
        return made

    def _of(self, schema: Schema, combiner: str, depth: int) -> Iterator[Schema]:
        """The branches of a union, each with the definitions that it may refer to."""
        holders = {key: schema[key] for key in DEFINITIONS if key in schema}
        for branch in _list(schema.get(combiner)):
            self.branches += 1
            # Unions can refer to themselves: circles end here.
            if isinstance(branch, dict) and depth < MAX_DEPTH and self.branches <= MAX_BRANCHES:
                yield {**branch, **holders}


def _plain(schema: Schema) -> Schema:
    """An object with the schema's own properties, without what may not stand at a root."""
    made: Schema = {}
    for key in schema:  # a comprehension would cost three times as much: 1.1 µs
        if key not in NOT_AT_ROOT:
            made[key] = schema[key]
    made["type"] = "object"
    if "properties" not in made or type(made["properties"]) is not dict:
        made["properties"] = {}
    if "required" in made:
        required: dict[str, None] = {}  # each once, in order
        names = made["required"]
        for name in names if type(names) is list else _list(names):
            if type(name) is str:
                required[name] = None
        if required:
            made["required"] = [*required]
    return made


class _NotStrict(Exception):
    """Something in this schema has no strict form."""


@dataclass(slots=True)
class _Strictness:
    """One walk over one schema; references are replaced by what they name."""

    definitions: Mapping[str, Any]
    optional: set[str] = field(default_factory=set)
    parts: int = 0

    def any(self, schema: Any, path: str, depth: int) -> Schema:
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            raise _NotStrict
        if "$ref" in schema:
            # A circle ends at MAX_DEPTH: what has no end has no strict form without references.
            return self.any(self._named(schema["$ref"]), path, depth + 1)
        if any(key in schema for key in UNSUPPORTED):
            raise _NotStrict
        kept = {key: schema[key] for key in KEPT if key in schema}
        union = schema.get("anyOf", schema.get("oneOf"))
        if union is not None:
            branches = _list(union)
            self._count(len(branches))
            kept["anyOf"] = [self.any(branch, path, depth + 1) for branch in branches]
            return kept
        types = _types(schema)
        if "object" in types:
            return self.object(schema, path, depth)
        if "array" in types:
            kept["items"] = self.any(schema.get("items"), _under(path, "*"), depth + 1)
        elif not types and not ("enum" in kept or "const" in kept):
            raise _NotStrict  # anything goes
        return kept

    def object(self, schema: Schema, path: str, depth: int) -> Schema:
        properties = schema.get("properties") or {}
        if not isinstance(properties, dict) or schema.get("additionalProperties") not in CLOSED:
            raise _NotStrict
        if any(key in schema for key in UNSUPPORTED) or "object" not in _types(schema, "object"):
            raise _NotStrict
        if not properties and depth > 0 and "additionalProperties" not in schema:
            raise _NotStrict  # a free map: strict form would forbid every key
        self._count(len(properties))
        required = _names(schema.get("required"))
        made: Schema = {}
        for name, inner in properties.items():
            below = _under(path, escaped(name))
            made[name] = self.any(inner, below, depth + 1)
            if name not in required and not _takes_null(made[name]):
                made[name] = _nullable(made[name])
                self.optional.add(below)
        kept = {key: schema[key] for key in KEPT if key in schema}
        kept["type"] = schema.get("type") or "object"
        return kept | {
            "properties": made,
            "required": list(made),
            "additionalProperties": False,
        }

    def _count(self, more: int) -> None:
        self.parts += more
        if self.parts > MAX_PROPERTIES:
            raise _NotStrict

    def _named(self, reference: Any) -> Any:
        found = self.definitions.get(reference) if isinstance(reference, str) else None
        if found is None:
            raise _NotStrict
        return found


def escaped(name: str) -> str:
    """A property's name as a part of a path; ``/`` and ``~`` as in JSON Pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _under(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _definitions(schema: Schema) -> dict[str, Any]:
    named: dict[str, Any] = {"#": schema}
    for holder in DEFINITIONS:
        inner = schema.get(holder)
        if isinstance(inner, dict):
            named |= {f"#/{holder}/{escaped(name)}": value for name, value in inner.items()}
    return named


def _dereferenced(schema: Schema) -> Schema:
    """The root with a ``$ref`` to one of its own definitions replaced by that definition."""
    definitions = _definitions(schema)
    holders = {key: schema[key] for key in DEFINITIONS if key in schema}
    for _ in range(MAX_REFERENCES):
        if "$ref" not in schema:
            return schema
        reference = schema["$ref"]
        target = definitions.get(reference) if isinstance(reference, str) else None
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**(target if isinstance(target, dict) else {}), **rest, **holders}
    return {key: value for key, value in schema.items() if key != "$ref"}


def _required_by(branches: list[Schema], combiner: str) -> list[str]:
    required = [_names(branch.get("required")) for branch in branches]
    if combiner == "allOf":
        return [name for names in required for name in names]
    first, *others = required or [[]]
    return [name for name in first if all(name in names for names in others)]


def _nullable(schema: Schema) -> Schema:
    if "anyOf" in schema:
        return schema | {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "const" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    made = dict(schema)
    if "type" in made:
        made["type"] = [*_list(made["type"]), "null"]
    if "enum" in made:
        made["enum"] = [*made["enum"], None]
    return made


def _takes_null(schema: Schema) -> bool:
    if "anyOf" in schema:
        return any(_takes_null(branch) for branch in schema["anyOf"])
    return "null" in _list(schema.get("type")) or None in _list(schema.get("enum"))


def _types(schema: Schema, *default: str) -> list[str]:
    """The types that a schema allows; ``default`` where it names none."""
    types = _list(schema.get("type"))
    if any(not isinstance(kind, str) or kind not in TYPES for kind in types):
        raise _NotStrict
    return types or [*default]


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _names(value: Any) -> list[str]:
    return [name for name in _list(value) if isinstance(name, str)]


TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})

DEFINITIONS: Final[tuple[str, ...]] = ("$defs", "definitions")

COMBINERS: Final = ("allOf", "anyOf", "oneOf")

UNFOLDING: Final = frozenset({"$ref", *COMBINERS})
"""What stands for other schemas."""

NOT_AT_ROOT: Final = frozenset({"$schema", "$id", "$comment", *UNFOLDING, "enum", "const", "not"})

KEPT: Final = ("type", "title", "description", "enum", "const")
"""What a strict schema may say besides its structure; bounds, formats and defaults are no part."""

UNSUPPORTED: Final = frozenset(
    {
        "allOf",
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "patternProperties",
        "prefixItems",
        "propertyNames",
        "unevaluatedProperties",
    }
)
"""Keywords whose loss would change which values fit; bounds on a value are only left unchecked."""

CLOSED: Final = (None, False)
