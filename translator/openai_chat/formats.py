"""Structured outputs: ``output_config.format`` -> ``response_format``."""

from typing import Any, Final

from translator.arguments import compact_json
from translator.draft import Draft
from translator.schemas import normalise, strict

NAME: Final = "structured_output"  # the upstream demands one, Anthropic has none


def response_format(draft: Draft) -> dict[str, Any]:
    """``response_format`` for the demanded JSON schema; nothing when none is demanded."""
    config = draft.request.get("output_config") or {}
    demanded = config.get("format") or draft.request.get("output_format")
    if not demanded:
        return {}
    schema = demanded.get("schema") or {}
    if not draft.profile.json_schema:
        draft.note("output_config.format", "emulated", "the schema is told in the system prompt")
        draft.system_additions.append(
            f"Answer with one JSON object that follows this schema: {compact_json(schema)}"
        )
        return {"response_format": {"type": "json_object"}}
    wanted: dict[str, Any] = {"name": NAME, "schema": normalise(schema)}
    if draft.profile.strict_schemas:
        wanted["strict"] = False
        made = strict(schema)
        # Optional properties would come back as nulls, which the client's schema forbids.
        if made is not None and not made.optional:
            wanted |= {"schema": made.schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}
