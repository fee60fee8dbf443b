"""The answers of Anthropic's Admin API as OpenAPI schemas: what our schema promises of them."""

from typing import Any, Final

from proxy.reports.base import NamedAfterView

from .groups import OURS, THEIRS

Schema = dict[str, Any]


class WireSchema(NamedAfterView):
    """Parameters and answer are those that the view names."""

    view: Any

    def get_override_parameters(self) -> list[Any]:
        parameters = self.view.parameters
        return [parameters] if parameters().fields else []

    def get_response_serializers(self) -> Any:
        return {200: self.view.answer}


def some(kind: str) -> Schema:
    return {"type": kind}


def or_null(schema: Schema) -> Schema:
    return {**schema, "nullable": True}


def listed(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def an(optional: dict[str, Schema] | None = None, **fields: Schema) -> Schema:
    """An object with these fields, all of them there, and no others."""
    return {
        "type": "object",
        "properties": {**fields, **(optional or {})},
        "required": list(fields),
        "additionalProperties": False,
    }


TEXT: Final = some("string")
COUNT: Final = some("integer")
COUNT_OR_NULL: Final = or_null(COUNT)
FLAG: Final = some("boolean")
TEXT_OR_NULL: Final = or_null(TEXT)


def turned(row: Schema) -> Schema:
    """Pages by ``page``."""
    return an(data=listed(row), has_more=FLAG, next_page=TEXT_OR_NULL)


def walked(row: Schema) -> Schema:
    """Pages by ``after_id`` and ``before_id``."""
    return an(data=listed(row), has_more=FLAG, first_id=TEXT_OR_NULL, last_id=TEXT_OR_NULL)


def buckets(row: Schema) -> Schema:
    return turned(an(starting_at=TEXT, ending_at=TEXT, results=listed(row)))


CACHE_CREATION: Final = an(ephemeral_5m_input_tokens=COUNT, ephemeral_1h_input_tokens=COUNT)
MISSING_REQUESTS: Final = an(
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
    "server_tool_use": an(web_search_requests=COUNT),
}
THEIR_GROUPS: Final = dict.fromkeys(THEIRS, TEXT_OR_NULL)
OUR_GROUPS: Final = dict.fromkeys(OURS, TEXT_OR_NULL)
OURS_OF_TOKENS: Final = {"missing_requests": MISSING_REQUESTS}
USAGE_REPORT: Final = buckets(an(OUR_GROUPS | OURS_OF_TOKENS, **TOKENS, **THEIR_GROUPS))
COST_ROW: Final = an(
    {**OUR_GROUPS, "api_key_id": TEXT_OR_NULL, "account_id": TEXT_OR_NULL}
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

MONEY: Final = an(amount=TEXT_OR_NULL, currency=TEXT)
DECISIONS: Final = an(accepted=COUNT_OR_NULL, rejected=COUNT_OR_NULL)
CLAUDE_CODE: Final = turned(
    an(
        date=TEXT,
        actor=an(type=TEXT, api_key_name=TEXT),
        customer_type=TEXT,
        organization_id=TEXT,
        subscription_type=TEXT_OR_NULL,
        terminal_type=TEXT_OR_NULL,
        core_metrics=an(
            num_sessions=COUNT,
            lines_of_code=an(added=COUNT_OR_NULL, removed=COUNT_OR_NULL),
            commits_by_claude_code=COUNT_OR_NULL,
            pull_requests_by_claude_code=COUNT_OR_NULL,
        ),
        tool_actions=an(
            edit_tool=DECISIONS,
            multi_edit_tool=DECISIONS,
            write_tool=DECISIONS,
            notebook_edit_tool=DECISIONS,
        ),
        model_breakdown=listed(
            an(
                model=TEXT,
                tokens=an(
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


def analysed(**figures: Schema) -> Schema:
    row = an(starting_at=TEXT, ending_at=TEXT, group=some("object"), **figures)
    return an(
        data=listed(row), has_more=FLAG, next_page=TEXT_OR_NULL, data_refreshed_at=TEXT_OR_NULL
    )


ANALYTICS_USAGE: Final = analysed(
    usage=an(OURS_OF_TOKENS, **TOKENS, total_tokens=COUNT, requests=COUNT)
)
ANALYTICS_COST: Final = analysed(
    cost=an(amount=TEXT_OR_NULL, list_amount=TEXT_OR_NULL, currency=TEXT, requests=COUNT)
)

ORGANIZATION: Final = an(id=TEXT, type=TEXT, name=TEXT)
KEY: Final = an(
    id=TEXT,
    type=TEXT,
    name=TEXT,
    status=TEXT,
    created_at=TEXT,
    created_by=or_null(an(id=TEXT, type=TEXT)),
    partial_key_hint=TEXT,
    expires_at=TEXT_OR_NULL,
    principal=or_null(an(type=TEXT, user_id=TEXT)),
    scope=an(type=TEXT, workspace_id=TEXT),
    workspace_id=TEXT,
)
USER: Final = an(id=TEXT, type=TEXT, email=TEXT, name=TEXT, role=TEXT, added_at=TEXT)
WORKSPACE: Final = an(
    id=TEXT,
    type=TEXT,
    name=TEXT,
    display_color=TEXT,
    compartment_id=TEXT,
    data_residency=some("object"),
    external_key_id=TEXT_OR_NULL,
    user_profile_id=TEXT_OR_NULL,
    created_at=TEXT,
    archived_at=TEXT_OR_NULL,
    tags=some("object"),
)
MEMBER: Final = an(id=TEXT, type=TEXT, user_id=TEXT, workspace_id=TEXT, workspace_role=TEXT)
SCOPE: Final = an(
    {"workspace_id": TEXT, "api_key_id": TEXT_OR_NULL, "user_id": TEXT_OR_NULL}, type=TEXT
)
AMOUNT: Final = {"amount": TEXT, "currency": TEXT, "period": TEXT, "scope": SCOPE}
LIMIT: Final = an(**AMOUNT, id=TEXT, type=TEXT, is_enabled=FLAG, created_at=TEXT, updated_at=TEXT)
EFFECTIVE: Final = an(
    **AMOUNT,
    actor=some("object"),
    spend_limit_id=TEXT,
    source=SCOPE,
    period_to_date_spend=TEXT_OR_NULL,
)
