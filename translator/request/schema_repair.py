"""Repair keywords of JSON schemas for which OpenAI refuses a whole request.

Anthropic accepts these schemas, and MCP servers send them: one tool with such a schema would make
all tools unusable. Source: the errors in public reports, "array schema missing items"
(modelscope/ms-agent#610, tuples of FastMCP in PrefectHQ/fastmcp#2464), "[] is too short", "None is
not of type 'array'", "True is not of type 'object'"; Gemini's "property is not defined" for
``required``; JSON Schema, "Validation".
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from translator.stream.tool_arguments import compact_json

Schema = dict[str, Any]

TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
DEFINITIONS: Final[tuple[str, ...]] = ("$defs", "definitions")
MAX_DEPTH: Final = 64
"""Subschemas below this depth stay as they came."""
DROP: Final = object()
"""In place of a keyword's value: the keyword is dropped."""
OTHER_REGEX: Final = ("\\p{", "\\P{", "\\u{", "(?<")
"""Parts of JavaScript patterns that OpenAI's check ("is not a 'regex'") does not know."""


def repaired(schema: Any, repairs: dict[str, None]) -> Schema:
    """Return the schema with valid keywords at any depth; the same object if all are valid.

    ``repairs`` collects what was changed, in words.
    """
    result = _Repairer(schema, repairs).subschema(schema, 0) if schema is not None else {}
    return result if isinstance(result, dict) else {}


def escape_name(name: str) -> str:
    """Return a property name as a path part, with JSON Pointer's escapes (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


class _Repairer:
    """The repairs of one schema; each method returns the same object if nothing is wrong."""

    def __init__(self, root: Any, repairs: dict[str, None]) -> None:
        self._root = root
        self._repairs = repairs

    def subschema(self, schema: Any, depth: int) -> Any:
        if type(schema) is not dict:
            self._repairs["a schema that is no object"] = None
            return {"not": {}} if schema is False else {}
        if depth > MAX_DEPTH:
            return schema
        changes: dict[str, Any] = {}
        for key, value in schema.items():
            check = KEYWORDS.get(key)
            if check is not None and (changed := check(self, value, schema, depth)) is not value:
                changes[key] = changed
        if "items" not in schema and _allows_arrays(schema.get("type")):
            self._repairs["an array without items"] = None
            changes["items"] = {}
        if not changes:
            return schema
        return {name: value for name, value in {**schema, **changes}.items() if value is not DROP}

    def _broken(self, key: str) -> Any:
        self._repairs[f"an invalid {key}"] = None
        return DROP

    def named_schemas(self, value: Any, schema: Schema, depth: int) -> Any:
        if type(value) is not dict:
            return self._broken("properties")
        changes = {
            name: changed
            for name, inner in value.items()
            if (changed := self.subschema(inner, depth + 1)) is not inner
        }
        return {**value, **changes} if changes else value

    def listed_schemas(self, value: Any, schema: Schema, depth: int) -> Any:
        if type(value) is not list or not value:
            return self._broken("union")
        made = [self.subschema(inner, depth + 1) for inner in value]
        return value if all(a is b for a, b in zip(made, value, strict=True)) else made

    def one_schema(self, value: Any, schema: Schema, depth: int) -> Any:
        return value if type(value) is bool else self.subschema(value, depth + 1)

    def items(self, value: Any, schema: Schema, depth: int) -> Any:
        if type(value) is not list:
            return self.subschema(value, depth + 1)
        self._repairs["a list as items"] = None  # the form of tuples before draft 2020-12
        branches = [self.subschema(inner, depth + 1) for inner in value]
        return {"anyOf": branches} if len(branches) > 1 else (branches or [{}])[0]

    def required(self, value: Any, schema: Schema, depth: int) -> Any:
        if type(value) is not list:
            return [value] if type(value) is str else self._broken("required")
        names = list(dict.fromkeys(name for name in value if type(name) is str))
        properties = schema.get("properties")
        # The branches of a union may define the property, and a branch may require one outside.
        if type(properties) is dict and DEFINES_ELSEWHERE.isdisjoint(schema):
            names = [name for name in names if name in properties]
        if len(names) == len(value):
            return value
        self._broken("required")
        return names or DROP

    def enum(self, value: Any, schema: Schema, depth: int) -> Any:
        if type(value) is not list or not value:
            return self._broken("enum")
        try:
            if len(set(value)) == len(value):
                return value
        except TypeError:  # lists and objects
            pass
        distinct = {compact_json(each): each for each in value}
        if len(distinct) == len(value):
            return value
        self._broken("enum")
        return list(distinct.values())

    def type(self, value: Any, schema: Schema, depth: int) -> Any:
        if type(value) is str and value in TYPES:
            return value
        kinds = value if type(value) is list else []
        valid = list(dict.fromkeys(each for each in kinds if type(each) is str and each in TYPES))
        if valid and len(valid) == len(kinds):
            return value
        self._broken("type")
        return valid or DROP

    def reference(self, value: Any, schema: Schema, depth: int) -> Any:
        if type(value) is str and (value.startswith("#") and self._exists(value)):
            return value
        self._repairs["a reference to nothing"] = None
        return DROP

    def pattern(self, value: Any, schema: Schema, depth: int) -> Any:
        if type(value) is str and not any(each in value for each in OTHER_REGEX):
            return value
        return self._broken("pattern")

    def _exists(self, reference: str) -> bool:
        if not reference.startswith("#/"):
            return True  # the root, or an anchor
        place = self._root
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if type(place) is dict and name in place:
                place = place[name]
            elif type(place) is list and name.isdecimal() and int(name[:6]) < len(place):
                place = place[int(name[:6])]
            else:
                return False
        return type(place) in (dict, bool)


def _allows_arrays(kind: Any) -> bool:
    return kind == "array" or (type(kind) is list and "array" in kind)


DEFINES_ELSEWHERE: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf", "patternProperties"})

KEYWORDS: Final[Mapping[str, Callable[[_Repairer, Any, Schema, int], Any]]] = {
    **dict.fromkeys(
        (*DEFINITIONS, "dependentSchemas", "patternProperties", "properties"),
        _Repairer.named_schemas,
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _Repairer.listed_schemas),
    **dict.fromkeys(
        (
            *("additionalItems", "additionalProperties", "contains", "else", "if", "not"),
            *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
        ),
        _Repairer.one_schema,
    ),
    "$ref": _Repairer.reference,
    "enum": _Repairer.enum,
    "items": _Repairer.items,
    "pattern": _Repairer.pattern,
    "required": _Repairer.required,
    "type": _Repairer.type,
}
"""Keywords with subschemas, and those for which OpenAI refuses invalid values. The values of
``const``, ``default`` and ``examples`` are data."""
