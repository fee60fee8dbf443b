"""Convert JSON schemas of tools and outputs to OpenAI's rules, and to its strict form.

OpenAI refuses a whole request for keywords that Anthropic accepts, and MCP servers send them: one
tool with such a schema would make all tools unusable. So they are repaired. Source: the errors in
public reports, "array schema missing items" (modelscope/ms-agent#610, tuples of FastMCP in
PrefectHQ/fastmcp#2464), "[] is too short", "None is not of type 'array'", "True is not of type
'object'"; Gemini's "property is not defined" for ``required``; JSON Schema, "Validation".
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from translator.dialect import AnswerForm
from translator.message_stream.message_composer import ANSWER_FIELD
from translator.stream.tool_arguments import compact_json

from .builder import RequestBuilder

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


def unescape_name(escaped: str) -> str:
    return escaped.replace("~1", "/").replace("~0", "~")


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
            name = unescape_name(part)
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


MAX_STRICT_DEPTH: Final = 10
MAX_PROPERTIES: Final = 5000
"""OpenAI's limit of properties in a strict schema."""

MAX_BRANCHES: Final = 1000
"""Maximum union branches to read, because a malicious schema could expand without end."""

MAX_PARTS: Final = 100_000
"""Maximum keywords, properties and required names of the branches to read: many branches may refer
to one large definition."""

MAX_EXPANDED: Final = 2**20
"""Maximum characters of the definitions that replace references in a strict schema, each counted as
often as it is used."""

MAX_CHOICES: Final = 20
"""Maximum branches of a union whose required properties are described in words."""

MAX_REFERENCES: Final = 16
"""Maximum chain of ``$ref`` at a schema's root; a longer chain is treated as a cycle."""


@dataclass(frozen=True, slots=True)
class StrictSchema:
    """A schema in OpenAI's strict form, and its properties that were optional before.

    ``optional`` contains the paths of properties that became nullable, joined by ``/`` (``*`` for
    the items of a list): a null in such a property means that the property is absent.
    """

    schema: Schema
    optional: frozenset[str]


def normalize(schema: Any, repairs: dict[str, None] | None = None) -> Schema:
    """Return the schema in a form that OpenAI accepts: an object, with valid keywords at any depth.

    ``repairs`` collects what was changed, for a note. A union at the root becomes an object with
    the properties of all branches, and with the properties required that every branch requires;
    its description says what each branch requires. So every value that matches the original schema
    also matches the result.
    """
    found: dict[str, None] = {} if repairs is None else repairs
    schema = repaired(schema, found)
    # Fast path for schemas without references and unions: 1.3 µs instead of 14.
    if EXPANDABLE.isdisjoint(schema):
        result = _plain_object(schema)
    else:
        result = _RootNormalizer(found).root(schema, 0)
    if "required" not in result:
        return result
    required = _names(result.get("required"))
    known = [name for name in required if name in result["properties"]]
    if len(known) == len(required):
        return result
    found["an invalid required"] = None
    rest = {name: value for name, value in result.items() if name != "required"}
    return rest | ({"required": known} if known else {})


def to_strict(schema: Any) -> StrictSchema | None:
    """Return the schema in OpenAI's strict form; None if that form cannot express the schema."""
    if not isinstance(schema, dict) or any(key in schema for key in COMBINERS):
        return None
    converter = _StrictConverter(schema)
    try:
        strict_schema = converter.object(resolve_root_reference(schema), "", 0)
    except _NotStrictError:
        return None
    return StrictSchema(strict_schema, frozenset(converter.optional))


@dataclass(slots=True)
class _RootNormalizer:
    """Merges the nested unions at the root of one schema into an object."""

    repairs: dict[str, None]
    branches: int = 0
    parts: int = 0

    def root(self, schema: Any, depth: int) -> Schema:
        schema = schema if isinstance(schema, dict) else {}
        if "$ref" in schema:
            schema = resolve_root_reference(schema)
        result = _plain_object(schema)
        properties: Schema = dict(result["properties"])
        required = _names(result.get("required"))
        self.parts += len(result) + len(properties) + len(required)
        for combiner in COMBINERS:
            if combiner not in schema:
                continue
            self.repairs["a union at its root"] = None
            branches = [
                self.root(branch, depth + 1) for branch in self._branches(schema, combiner, depth)
            ]
            properties = {**_merged_properties(branches, combiner), **properties}
            required += _required_by(branches, combiner)
            if combiner != "allOf" and (choices := _choices(branches)):
                given = result.get("description")
                is_text = isinstance(given, str) and given
                result["description"] = f"{given}\n\n{choices}" if is_text else choices
        result["properties"] = properties
        if required:
            result["required"] = list(dict.fromkeys(required))
        return result

    def _branches(self, schema: Schema, combiner: str, depth: int) -> Iterator[Schema]:
        """Yield the branches of a union, each with the definitions that its references need."""
        holders = {key: schema[key] for key in DEFINITIONS if key in schema}
        for branch in _list(schema.get(combiner)):
            self.branches += 1
            # Unions can refer to themselves; these limits end such cycles.
            if (
                isinstance(branch, dict)
                and depth < MAX_STRICT_DEPTH
                and self.branches <= MAX_BRANCHES
                and self.parts <= MAX_PARTS
            ):
                yield {**branch, **holders}


def _merged_properties(branches: list[Schema], combiner: str) -> Schema:
    """Return the properties of all branches; one that differs between them as a union."""
    variants: dict[str, dict[str, Any]] = {}
    texts: dict[int, str] = {}  # by the id of a property: that of a definition is in many branches
    for branch in branches:
        for name, inner in branch["properties"].items():
            if id(inner) not in texts:
                texts[id(inner)] = compact_json(inner)
            variants.setdefault(name, {}).setdefault(texts[id(inner)], inner)
    union = "allOf" if combiner == "allOf" else "anyOf"
    return {
        name: next(iter(each.values())) if len(each) == 1 else {union: list(each.values())}
        for name, each in variants.items()
    }


def _choices(branches: list[Schema]) -> str:
    """Return in words which properties each branch requires; "" if all require the same."""
    required = dict.fromkeys(tuple(_names(branch.get("required"))) for branch in branches)
    if len(required) < 2:
        return ""
    sets = [", ".join(names) or "none" for names in list(required)[:MAX_CHOICES]]
    return f"Required is one of these sets of properties: {'; '.join(sets)}."


def _plain_object(schema: Schema) -> Schema:
    """Return an object schema with the same properties, without keywords invalid at a root."""
    result: Schema = {}
    for key in schema:  # a comprehension would take three times as long: 1.1 µs
        if key not in NOT_AT_ROOT:
            result[key] = schema[key]
    result["type"] = "object"
    if "properties" not in result or type(result["properties"]) is not dict:
        result["properties"] = {}
    if "required" in result:
        required: dict[str, None] = {}  # an ordered set
        names = result["required"]
        for name in names if type(names) is list else _list(names):
            if type(name) is str:
                required[name] = None
        if required:
            result["required"] = [*required]
    return result


class _NotStrictError(Exception):
    """Raised if OpenAI's strict form cannot express a part of the schema."""


@dataclass(slots=True)
class _StrictConverter:
    """Converts one schema to the strict form; definitions replace their references."""

    root: Schema
    optional: set[str] = field(default_factory=set)
    parts: int = 0
    expanded: int = 0  # characters of the definitions used so far
    sizes: dict[str, int] = field(default_factory=dict)  # reference -> characters

    def any(self, schema: Any, path: str, depth: int) -> Schema:
        if not isinstance(schema, dict) or depth > MAX_STRICT_DEPTH:
            raise _NotStrictError
        if "$ref" in schema:
            # MAX_STRICT_DEPTH ends a cycle: without references, a cyclic schema has no strict form.
            reference = schema["$ref"]
            definition = _find_definition(self.root, reference)
            if definition is None:
                raise _NotStrictError
            if reference not in self.sizes:
                self.sizes[reference] = len(compact_json(definition))
            self.expanded += self.sizes[reference]
            if self.expanded > MAX_EXPANDED:
                raise _NotStrictError
            return self.any(definition, path, depth + 1)
        if any(key in schema for key in UNSUPPORTED):
            raise _NotStrictError
        result = {key: schema[key] for key in STRICT_KEYWORDS if key in schema}
        if "enum" in result and not (isinstance(result["enum"], list) and result["enum"]):
            raise _NotStrictError
        union = schema.get("anyOf", schema.get("oneOf"))
        if union is not None:
            branches = _list(union)
            self._count(len(branches))
            result["anyOf"] = [self.any(branch, path, depth + 1) for branch in branches]
            return result
        types = _types(schema)
        if "object" in types:
            return self.object(schema, path, depth)
        if "array" in types:
            result["items"] = self.any(schema.get("items"), _join_path(path, "*"), depth + 1)
        elif not types and not ("enum" in result or "const" in result):
            raise _NotStrictError  # A schema without a type allows any value
        return result

    def object(self, schema: Schema, path: str, depth: int) -> Schema:
        properties = schema.get("properties") or {}
        if (
            not isinstance(properties, dict)
            or schema.get("additionalProperties") not in CLOSED_OBJECT
        ):
            raise _NotStrictError
        if any(key in schema for key in UNSUPPORTED) or "object" not in _types(schema, "object"):
            raise _NotStrictError
        if not properties and depth > 0 and "additionalProperties" not in schema:
            raise _NotStrictError  # an object with any keys; a strict object would forbid all keys
        self._count(len(properties))
        required = frozenset(_names(schema.get("required")))
        converted: Schema = {}
        for name, inner in properties.items():
            property_path = _join_path(path, escape_name(name))
            converted[name] = self.any(inner, property_path, depth + 1)
            if name not in required and not _allows_null(converted[name]):
                converted[name] = _nullable(converted[name])
                self.optional.add(property_path)
        result = {key: schema[key] for key in STRICT_KEYWORDS if key in schema}
        result["type"] = schema.get("type") or "object"
        return result | {
            "properties": converted,
            "required": list(converted),
            "additionalProperties": False,
        }

    def _count(self, more: int) -> None:
        self.parts += more
        if self.parts > MAX_PROPERTIES:
            raise _NotStrictError


def _join_path(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _find_definition(root: Schema, reference: Any) -> Any:
    """Return what a reference to the root or to one of its definitions stands for; else None."""
    if not isinstance(reference, str):
        return None
    if reference == "#":
        return root
    for holder in DEFINITIONS:
        place = f"#/{holder}/"
        inner = root.get(holder)
        if reference.startswith(place) and isinstance(inner, dict):
            escaped = reference.removeprefix(place)
            name = unescape_name(escaped)
            return inner.get(name) if escape_name(name) == escaped else None
    return None


def resolve_root_reference(schema: Schema) -> Schema:
    """Replace a root ``$ref`` to one of the schema's own definitions by that definition."""
    root = schema
    holders = {key: schema[key] for key in DEFINITIONS if key in schema}
    for _ in range(MAX_REFERENCES):
        if "$ref" not in schema:
            return schema
        target = _find_definition(root, schema["$ref"])
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**(target if isinstance(target, dict) else {}), **rest, **holders}
    return {key: value for key, value in schema.items() if key != "$ref"}


def _required_by(branches: list[Schema], combiner: str) -> list[str]:
    required = [_names(branch.get("required")) for branch in branches]
    if combiner == "allOf":
        return [name for names in required for name in names]
    first, *others = required or [[]]
    in_all = frozenset(first).intersection(*others)
    return [name for name in first if name in in_all]


def _nullable(schema: Schema) -> Schema:
    if "anyOf" in schema:
        return schema | {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "const" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    result = dict(schema)
    if "type" in result:
        result["type"] = [*_list(result["type"]), "null"]
    if "enum" in result:
        result["enum"] = [*result["enum"], None]
    return result


def _allows_null(schema: Schema) -> bool:
    if "anyOf" in schema:
        return any(_allows_null(branch) for branch in schema["anyOf"])
    return "null" in _list(schema.get("type")) or None in _list(schema.get("enum"))


def _types(schema: Schema, *default: str) -> list[str]:
    """Return the types that a schema allows; ``default`` if the schema has no ``type``."""
    types = _list(schema.get("type"))
    if any(not isinstance(kind, str) or kind not in TYPES for kind in types):
        raise _NotStrictError
    return types or [*default]


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _names(value: Any) -> list[str]:
    return [name for name in _list(value) if isinstance(name, str)]


COMBINERS: Final = ("allOf", "anyOf", "oneOf")

EXPANDABLE: Final = frozenset({"$ref", *COMBINERS})
"""Keywords that refer to or combine other schemas."""

NOT_AT_ROOT: Final = frozenset({"$schema", "$id", "$comment", *EXPANDABLE, "enum", "const", "not"})

STRICT_KEYWORDS: Final = ("type", "title", "description", "enum", "const")
"""Keywords that are copied into a strict schema; bounds, formats and defaults are dropped."""

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
"""Keywords that a strict schema cannot contain. They cannot be dropped either, because invalid
values would become valid."""

CLOSED_OBJECT: Final = (None, False)


PATH: Final = "output_config.format"
OUTPUT_NAME: Final = "structured_output"
"""The name of a schema, which OpenAI requires and Anthropic's API does not have."""
NOT_AN_OBJECT: Final = frozenset({"anyOf", "oneOf", "enum", "const", "not"})
"""Keywords with which a schema may allow other values than objects, or only some objects."""


class OutputSchema(NamedTuple):
    schema: Schema
    strict: bool


def output_schema(output_format: dict[str, Any], builder: RequestBuilder) -> OutputSchema:
    """Return the schema to send, with notes; set the form of the answer in ``builder``.

    OpenAI takes only an object at the root, and its strict mode, which keeps Anthropic's guarantee,
    requires every property. So a list or union is wrapped in an object, and an optional property
    may be null instead; ``ResponseContext.answer`` tells how the answer gets its own form back.
    Source: docs/mapping.md, 1.7.3.
    """
    schema = output_format.get("schema") or {}
    is_wrapped = not _is_object(schema)
    if is_wrapped:
        schema = _wrapped(schema)
        builder.add_note(PATH, "emulated", "the upstream answers with an object around the value")
    strict_schema = to_strict(schema) if builder.profile.strict_schemas else None
    optional = strict_schema.optional if strict_schema is not None else frozenset()
    if optional:
        builder.add_note(PATH, "emulated", "optional properties may be null instead of absent")
    if is_wrapped or optional:
        builder.answer = AnswerForm(is_wrapped, optional)
    if strict_schema is not None:
        return OutputSchema(strict_schema.schema, strict=True)
    if builder.profile.strict_schemas:
        builder.add_note(PATH, "dropped", "the schema has no strict form: sent without a guarantee")
    repairs: dict[str, None] = {}
    normalized = normalize(schema, repairs)
    if repairs:
        builder.add_note(PATH, "repaired", f"changed for the upstream: {', '.join(repairs)}")
    return OutputSchema(normalized, strict=False)


def _is_object(schema: Schema) -> bool:
    """Return whether only objects match the schema; one without any restriction counts as such."""
    root = resolve_root_reference(schema)
    if not NOT_AN_OBJECT.isdisjoint(root):
        return False
    return root.get("type", "object") == "object" or not {"type", *COMBINERS} & root.keys()


def _wrapped(schema: Schema) -> Schema:
    """Return an object with the schema as its only property; the definitions stay at the root."""
    holders = {key: schema[key] for key in DEFINITIONS if key in schema}
    inner = {key: value for key, value in schema.items() if key not in holders}
    inner = {key: value for key, value in inner.items() if key not in ("$schema", "$id")}
    return {
        "type": "object",
        "properties": {ANSWER_FIELD: _with_moved_root(inner)},
        "required": [ANSWER_FIELD],
        "additionalProperties": False,
        **{key: _with_moved_root(value) for key, value in holders.items()},
    }


def _with_moved_root(value: Any, depth: int = 0) -> Any:
    """Return a part of a schema with references to the root changed to its new place."""
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, list):
        return [_with_moved_root(inner, depth + 1) for inner in value]
    if not isinstance(value, dict):
        return value
    moved = {name: _with_moved_root(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value.get("$ref"), str):
        moved["$ref"] = _moved(value["$ref"])
    return moved


def _moved(reference: str) -> str:
    at_definition = reference.startswith(tuple(f"#/{holder}/" for holder in DEFINITIONS))
    if at_definition or not (reference == "#" or reference.startswith("#/")):
        return reference
    return f"#/properties/{ANSWER_FIELD}{reference[1:]}"
