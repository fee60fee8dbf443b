"""The schema of a structured output in OpenAI's form (docs/mapping.md, 1.7.3).

OpenAI takes only an object at the root, and its strict mode, which keeps Anthropic's guarantee,
requires every property. So a list or union is wrapped in an object, and an optional property may be
null instead; ``ResponseContext.answer`` tells how the answer gets its own form back.
"""

from typing import Any, Final, NamedTuple

from translator.dialect import AnswerForm
from translator.message_stream.message_composer import WRAPPER

from .builder import RequestBuilder
from .json_schema import (
    COMBINERS,
    DEFINITIONS,
    MAX_DEPTH,
    Schema,
    normalize,
    resolve_root_reference,
    to_strict,
)

PATH: Final = "output_config.format"
OUTPUT_NAME: Final = "structured_output"
"""The name of a schema, which OpenAI requires and Anthropic's API does not have."""
NOT_AN_OBJECT: Final = frozenset({"anyOf", "oneOf", "enum", "const", "not"})
"""Keywords with which a schema may allow other values than objects, or only some objects."""


class OutputSchema(NamedTuple):
    schema: Schema
    strict: bool


def output_schema(output_format: dict[str, Any], builder: RequestBuilder) -> OutputSchema:
    """Return the schema to send, with notes; set the form of the answer in ``builder``."""
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
        "properties": {WRAPPER: _with_moved_root(inner)},
        "required": [WRAPPER],
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
    return f"#/properties/{WRAPPER}{reference[1:]}"
