"""OpenAPI schemas of the Admin API's responses."""

from typing import Any, Final

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


CACHE_CREATION: Final = object_schema(
    ephemeral_5m_input_tokens=COUNT, ephemeral_1h_input_tokens=COUNT
)
MISSING_REQUESTS: Final = object_schema(
    {
        "uncached_input_tokens": COUNT,
        "cache_creation": COUNT,
        "cache_read_input_tokens": COUNT,
        "output_tokens": COUNT,
    }
)
TOKENS: Final = {
    "uncached_input_tokens": COUNT,
    "cache_creation": CACHE_CREATION,
    "cache_read_input_tokens": COUNT,
    "output_tokens": COUNT,
    "server_tool_use": object_schema(web_search_requests=COUNT),
}
ANTHROPIC_FIELDS: Final = dict.fromkeys(ANTHROPIC_DIMENSIONS, TEXT_OR_NULL)
OWN_FIELDS: Final = dict.fromkeys(OWN_DIMENSIONS, TEXT_OR_NULL)
OWN_TOKEN_FIELDS: Final = {"missing_requests": MISSING_REQUESTS}
USAGE_REPORT: Final = buckets(
    object_schema(OWN_FIELDS | OWN_TOKEN_FIELDS, **TOKENS, **ANTHROPIC_FIELDS)
)
COST_ROW: Final = object_schema(
    {**OWN_FIELDS, "api_key_id": TEXT_OR_NULL, "account_id": TEXT_OR_NULL}
    | {"unpriced_requests": COUNT},
    amount=TEXT_OR_NULL,
    currency=TEXT,
    description=TEXT_OR_NULL,
    cost_type=TEXT_OR_NULL,
    token_type=TEXT_OR_NULL,
    model=TEXT_OR_NULL,
    service_tier=TEXT_OR_NULL,
    context_window=TEXT_OR_NULL,
    inference_geo=TEXT_OR_NULL,
    workspace_id=TEXT_OR_NULL,
)
COST_REPORT: Final = buckets(COST_ROW)

MONEY: Final = object_schema(amount=TEXT_OR_NULL, currency=TEXT)
DECISIONS: Final = object_schema(accepted=COUNT_OR_NULL, rejected=COUNT_OR_NULL)
CLAUDE_CODE: Final = page_schema(
    object_schema(
        date=TEXT,
        actor=object_schema(type=TEXT, api_key_name=TEXT),
        customer_type=TEXT,
        organization_id=TEXT,
        subscription_type=TEXT_OR_NULL,
        terminal_type=TEXT_OR_NULL,
        core_metrics=object_schema(
            num_sessions=COUNT,
            lines_of_code=object_schema(added=COUNT_OR_NULL, removed=COUNT_OR_NULL),
            commits_by_claude_code=COUNT_OR_NULL,
            pull_requests_by_claude_code=COUNT_OR_NULL,
        ),
        tool_actions=object_schema(
            edit_tool=DECISIONS,
            multi_edit_tool=DECISIONS,
            write_tool=DECISIONS,
            notebook_edit_tool=DECISIONS,
        ),
        model_breakdown=array_of(
            object_schema(
                model=TEXT,
                tokens=object_schema(
                    input=COUNT_OR_NULL,
                    output=COUNT_OR_NULL,
                    cache_read=COUNT_OR_NULL,
                    cache_creation=COUNT_OR_NULL,
                ),
                estimated_cost=MONEY,
            )
        ),
    )
)


def analytics_page(**figures: Schema) -> Schema:
    row = object_schema(starting_at=TEXT, ending_at=TEXT, group=type_schema("object"), **figures)
    return object_schema(
        data=array_of(row), has_more=FLAG, next_page=TEXT_OR_NULL, data_refreshed_at=TEXT_OR_NULL
    )


ANALYTICS_USAGE: Final = analytics_page(
    usage=object_schema(OWN_TOKEN_FIELDS, **TOKENS, total_tokens=COUNT, requests=COUNT)
)
ANALYTICS_COST: Final = analytics_page(
    cost=object_schema(amount=TEXT_OR_NULL, list_amount=TEXT_OR_NULL, currency=TEXT, requests=COUNT)
)

ORGANIZATION: Final = object_schema(id=TEXT, type=TEXT, name=TEXT)
KEY: Final = object_schema(
    id=TEXT,
    type=TEXT,
    name=TEXT,
    status=TEXT,
    created_at=TEXT,
    created_by=or_null(object_schema(id=TEXT, type=TEXT)),
    partial_key_hint=TEXT,
    expires_at=TEXT_OR_NULL,
    principal=or_null(object_schema(type=TEXT, user_id=TEXT)),
    scope=object_schema(type=TEXT, workspace_id=TEXT),
    workspace_id=TEXT,
)
USER: Final = object_schema(id=TEXT, type=TEXT, email=TEXT, name=TEXT, role=TEXT, added_at=TEXT)
WORKSPACE: Final = object_schema(
    id=TEXT,
    type=TEXT,
    name=TEXT,
    display_color=TEXT,
    compartment_id=TEXT,
    data_residency=type_schema("object"),
    external_key_id=TEXT_OR_NULL,
    user_profile_id=TEXT_OR_NULL,
    created_at=TEXT,
    archived_at=TEXT_OR_NULL,
    tags=type_schema("object"),
)
MEMBER: Final = object_schema(
    id=TEXT, type=TEXT, user_id=TEXT, workspace_id=TEXT, workspace_role=TEXT
)
SCOPE: Final = object_schema(
    {"workspace_id": TEXT, "api_key_id": TEXT_OR_NULL, "user_id": TEXT_OR_NULL}, type=TEXT
)
AMOUNT: Final = {"amount": TEXT, "currency": TEXT, "period": TEXT, "scope": SCOPE}
LIMIT: Final = object_schema(
    **AMOUNT, id=TEXT, type=TEXT, is_enabled=FLAG, created_at=TEXT, updated_at=TEXT
)
EFFECTIVE: Final = object_schema(
    **AMOUNT,
    actor=type_schema("object"),
    spend_limit_id=TEXT,
    source=SCOPE,
    period_to_date_spend=TEXT_OR_NULL,
)
