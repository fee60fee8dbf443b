"""Structured outputs: ``output_config.format`` -> ``response_format``."""

from typing import Any, Final

from translator.request.builder import RequestBuilder
from translator.request.output_schema import output_schema, requested_format
from translator.stream.tool_arguments import compact_json

# OpenAI requires a name, which Anthropic's API does not have.
SCHEMA_NAME: Final = "structured_output"


def response_format(builder: RequestBuilder) -> dict[str, Any]:
    """Return ``response_format`` for the requested JSON schema, if there is one."""
    output_format = requested_format(builder)
    if not output_format:
        return {}
    schema, is_strict = output_schema(output_format, builder)
    if not builder.profile.json_schema:
        builder.add_note(
            "output_config.format", "emulated", "the schema is sent in the system prompt"
        )
        builder.system_additions.append(
            f"Answer with one JSON object that follows this schema: {compact_json(schema)}"
        )
        return {"response_format": {"type": "json_object"}}
    json_schema: dict[str, Any] = {"name": SCHEMA_NAME, "schema": schema}
    if builder.profile.strict_schemas:
        json_schema["strict"] = is_strict
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}
