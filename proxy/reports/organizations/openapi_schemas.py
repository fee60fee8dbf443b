"""OpenAPI schemas of the Admin API's responses."""

from typing import Any, Final

from proxy.ledger.outcomes.extraction import EDIT_KINDS

from .dimensions import ANTHROPIC_DIMENSIONS, OWN_DIMENSIONS

Schema = dict[str, Any]


def type_schema(kind: str) -> Schema:
    return {"type": kind}


def or_null(schema: Schema) -> Schema:
    return {**schema, "nullable": True}


def array_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def object_schema(optional: dict[str, Schema] | None = None, **fields: Schema) -> Schema:
    """Return the schema of an object with these required and optional fields and no others."""
    return {
        "type": "object",
        "properties": {**fields, **(optional or {})},
        "required": list(fields),
        "additionalProperties": False,
    }


TEXT: Final = type_schema("string")
COUNT: Final = type_schema("integer")
COUNT_OR_NULL: Final = or_null(COUNT)
FLAG: Final = type_schema("boolean")
TEXT_OR_NULL: Final = or_null(TEXT)


def page_schema(row: Schema) -> Schema:
    """Return the schema of a page of rows with the cursor ``next_page``."""
    return object_schema(data=array_of(row), has_more=FLAG, next_page=TEXT_OR_NULL)


def list_schema(row: Schema) -> Schema:
    """Return the schema of a page of rows with ``first_id`` and ``last_id``."""
    return object_schema(
        data=array_of(row), has_more=FLAG, first_id=TEXT_OR_NULL, last_id=TEXT_OR_NULL
    )


def buckets(row: Schema) -> Schema:
    return page_schema(object_schema(starting_at=TEXT, ending_at=TEXT, results=array_of(row)))


def fields(schema: Schema, *names: str) -> dict[str, Schema]:
    """Return fields that have one schema."""
    return dict.fromkeys(names, schema)


TOKEN_FIELDS: Final = fields(
    COUNT, "uncached_input_tokens", "cache_read_input_tokens", "output_tokens"
)
TOKENS: Final = TOKEN_FIELDS | {
    "cache_creation": object_schema(
        **fields(COUNT, "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
    ),
    "server_tool_use": object_schema(web_search_requests=COUNT),
}
OWN_FIELDS: Final = fields(TEXT_OR_NULL, *OWN_DIMENSIONS)
OWN_TOKEN_FIELDS: Final = {
    "missing_requests": object_schema({**TOKEN_FIELDS, "cache_creation": COUNT})
}
USAGE_REPORT: Final = buckets(
    object_schema(
        OWN_FIELDS | OWN_TOKEN_FIELDS, **TOKENS, **fields(TEXT_OR_NULL, *ANTHROPIC_DIMENSIONS)
    )
)
COST_DIMENSIONS: Final = (
    *("description", "cost_type", "token_type", "model", "service_tier"),
    *("context_window", "inference_geo", "workspace_id"),
)
COST_REPORT: Final = buckets(
    object_schema(
        {**OWN_FIELDS, **fields(TEXT_OR_NULL, "api_key_id", "account_id")}
        | {"unpriced_requests": COUNT},
        currency=TEXT,
        **fields(TEXT_OR_NULL, "amount", *COST_DIMENSIONS),
    )
)

DECISIONS: Final = object_schema(**fields(COUNT_OR_NULL, "accepted", "rejected"))
CLAUDE_CODE: Final = page_schema(
    object_schema(
        **fields(TEXT, "date", "customer_type", "organization_id"),
        **fields(TEXT_OR_NULL, "subscription_type", "terminal_type"),
        actor=object_schema(**fields(TEXT, "type", "api_key_name")),
        core_metrics=object_schema(
            num_sessions=COUNT,
            lines_of_code=object_schema(**fields(COUNT_OR_NULL, "added", "removed")),
            **fields(COUNT_OR_NULL, "commits_by_claude_code", "pull_requests_by_claude_code"),
        ),
        tool_actions=object_schema(**fields(DECISIONS, *(f"{kind}_tool" for kind in EDIT_KINDS))),
        model_breakdown=array_of(
            object_schema(
                model=TEXT,
                tokens=object_schema(
                    **fields(COUNT_OR_NULL, "input", "output", "cache_read", "cache_creation")
                ),
                estimated_cost=object_schema(amount=TEXT_OR_NULL, currency=TEXT),
            )
        ),
    )
)


def analytics_page(**figures: Schema) -> Schema:
    group = type_schema("object")
    row = object_schema(**fields(TEXT, "starting_at", "ending_at"), group=group, **figures)
    return object_schema(
        data=array_of(row),
        has_more=FLAG,
        **fields(TEXT_OR_NULL, "next_page", "data_refreshed_at"),
    )


ANALYTICS_USAGE: Final = analytics_page(
    usage=object_schema(OWN_TOKEN_FIELDS, **TOKENS, **fields(COUNT, "total_tokens", "requests"))
)
ANALYTICS_COST: Final = analytics_page(
    cost=object_schema(
        **fields(TEXT_OR_NULL, "amount", "list_amount"), currency=TEXT, requests=COUNT
    )
)

ORGANIZATION: Final = object_schema(**fields(TEXT, "id", "type", "name"))
KEY: Final = object_schema(
    **fields(TEXT, "id", "type", "name", "status", "created_at", "partial_key_hint"),
    workspace_id=TEXT,
    expires_at=TEXT_OR_NULL,
    created_by=or_null(object_schema(**fields(TEXT, "id", "type"))),
    principal=or_null(object_schema(**fields(TEXT, "type", "user_id"))),
    scope=object_schema(**fields(TEXT, "type", "workspace_id")),
)
USER: Final = object_schema(**fields(TEXT, "id", "type", "email", "name", "role", "added_at"))
WORKSPACE: Final = object_schema(
    **fields(TEXT, "id", "type", "name", "display_color", "compartment_id", "created_at"),
    **fields(TEXT_OR_NULL, "external_key_id", "user_profile_id", "archived_at"),
    **fields(type_schema("object"), "data_residency", "tags"),
)
MEMBER: Final = object_schema(
    **fields(TEXT, "id", "type", "user_id", "workspace_id", "workspace_role")
)
SCOPE: Final = object_schema(
    {"workspace_id": TEXT, "api_key_id": TEXT_OR_NULL, "user_id": TEXT_OR_NULL}, type=TEXT
)
AMOUNT: Final = {**fields(TEXT, "amount", "currency", "period"), "scope": SCOPE}
LIMIT: Final = object_schema(
    **AMOUNT, **fields(TEXT, "id", "type", "created_at", "updated_at"), is_enabled=FLAG
)
EFFECTIVE: Final = object_schema(
    **AMOUNT,
    actor=type_schema("object"),
    spend_limit_id=TEXT,
    source=SCOPE,
    period_to_date_spend=TEXT_OR_NULL,
)
