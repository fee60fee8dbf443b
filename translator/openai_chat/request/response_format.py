"""Structured outputs: ``output_config.format`` -> ``response_format``."""

from typing import Any, Final

from translator.request.builder import RequestBuilder
from translator.request.json_schema import normalize, to_strict
from translator.stream.tool_arguments import compact_json

# OpenAI requires a name, which Anthropic's API does not have.
SCHEMA_NAME: Final = "structured_output"


def response_format(builder: RequestBuilder) -> dict[str, Any]:
    """Return ``response_format`` for the requested JSON schema, if there is one."""
    config = builder.request.get("output_config") or {}
    output_format = config.get("format") or builder.request.get("output_format")
    if not output_format:
        return {}
    schema = output_format.get("schema") or {}
    if not builder.profile.json_schema:
        builder.add_note(
            "output_config.format", "emulated", "the schema is sent in the system prompt"
        )
        builder.system_additions.append(
            f"Answer with one JSON object that follows this schema: {compact_json(schema)}"
        )
        return {"response_format": {"type": "json_object"}}
    json_schema: dict[str, Any] = {"name": SCHEMA_NAME, "schema": normalize(schema)}
    if builder.profile.strict_schemas:
        json_schema["strict"] = False
        strict_schema = to_strict(schema)
        # Strict schemas make optional properties nullable, and the client's schema forbids these
        # nulls.
        if strict_schema is not None and not strict_schema.optional:
            json_schema |= {"schema": strict_schema.schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}
