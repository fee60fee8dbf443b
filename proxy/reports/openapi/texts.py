"""The texts of the OpenAPI document that no serializer and no view has.

A parameter of a serializer has its ``help_text``; this page has the parameters whose meaning is the
same in every path, and the parts of the paths.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

PARAMETERS: Final[Mapping[str, str]] = {
    # parts of paths
    "budget_id": "The `id` of the budget.",
    "delivery_id": "The `id` of the delivery.",
    "export_id": "The `id` of the export.",
    "ident": "The `id` of the object.",
    "key_id": "The `id` of the gateway key.",
    "pause_id": "The `id` of the pause.",
    "price_id": "The `id` of the price.",
    "report": "The `name` of the saved report.",
    "request_id": "The `id` of the request: the `request-id` header of its response.",
    "route_id": "The `id` of the route.",
    "session_id": "The `session_id` of the session.",
    "side": "Which body.",
    "team": "The `id` of the team, which is its name.",
    "upstream": "The `id` of the upstream, which is its name.",
    "user": "The `id` of the user, which is the name to sign in with.",
    "webhook_id": "The `id` of the webhook.",
    # groups
    "bucket": "The width of a time bucket, in the time zone `tz`.",
    "by": "The dimension of the rows.",
    "group_by": "The dimensions of the rows, at most four.",
    "metric": "The figures, at most four; a ranking has one.",
    # pages and formats
    "after_id": "Only the objects after this one: the `last_id` of the previous page.",
    "before_id": "Only the objects before this one: the `first_id` of the following page.",
    "format": "`json` has pages; `csv` and `ndjson` are files with all rows.",
    "limit": "The maximum number of rows in a page.",
    "page": "The `next_page` of the previous response.",
    # Anthropic's Admin API
    "account_ids": "Only requests of these users.",
    "actor_ids": "Only requests of these gateway keys.",
    "api_key_ids": "Only requests with these gateway keys.",
    "bucket_width": "The width of a time bucket.",
    "context_windows": "Only requests whose prompts have these sizes, in tokens.",
    "created_by_user_id": "Only keys of this user.",
    "email": "Only the user with this address.",
    "ending_at": "End, exclusive: RFC 3339. Default: now.",
    "ids": "Only these objects.",
    "include_archived": "Without effect: teams are not archived.",
    "include_default": "Without effect: there is no default workspace.",
    "inference_geos": "Only requests with these regions; the gateway records none.",
    "models": "Only requests for these models.",
    "models_as": "The name of a model: as the client requested it, or as it was sent upstream.",
    "order": "Ascending or descending.",
    "order_by": "The figure to sort the rows by.",
    "period": "Only spend limits with these periods.",
    "roles": "Only users with these roles.",
    "scope_type": "Only spend limits with these types of scope.",
    "service_account_ids": "Only requests of these service accounts; the gateway has none.",
    "service_tiers": "Only requests that the upstream served with these tiers.",
    "session_ids": "Only requests of these sessions.",
    "speeds": "Only requests with these speeds; the gateway records none.",
    "starting_at": "Start, inclusive: RFC 3339, rounded down to the start of a bucket.",
    "time_bucket_width": "The width of a time bucket.",
    "user_ids": "Only spend limits of these users.",
    "workspace_id": "Only objects of this team.",
    "workspace_ids": "Only requests of these teams.",
    "status": "Only rows with this status.",
    "context_window": "Only requests whose prompts have these sizes, in tokens.",
}
"""Name of a parameter -> its description, if its serializer has none."""

RESPONSES: Final[Mapping[str, str]] = {
    "page": "The rows of one page.",
    "200": "The result.",
    "201": "The new row.",
    "202": "The request is accepted; the work continues after this response.",
    "204": "The row is deleted; the response has no body.",
    "304": "The result has the `ETag` that the request named in `If-None-Match`.",
}
"""Status of a success -> its description; ``page`` is a 200 with a list of rows."""

ERRORS: Final[Mapping[str, tuple[str, str, str]]] = {
    "400": (
        "invalid_request_error",
        "A parameter or a field of the body is unknown or invalid; the message names it.",
        "limit: 5000 is too large; the maximum is 1000",
    ),
    "401": (
        "authentication_error",
        "The request has neither a valid gateway key nor a session.",
        "no gateway key; send x-api-key or Authorization: Bearer",
    ),
    "403": (
        "permission_error",
        "The caller lacks the scope or the permission that the message names.",
        "this needs a key with the scope 'reports' or 'admin'",
    ),
    "404": (
        "not_found_error",
        "The object does not exist, or the caller may not see it.",
        "no request 'req_01HZX3V9J0'",
    ),
    "405": (
        "invalid_request_error",
        "The path does not support the method.",
        'Method "PUT" not allowed.',
    ),
    "409": (
        "invalid_request_error",
        "The current state does not allow the request; the message has the reason.",
        "platform is in use by 2 gateway keys; delete these first",
    ),
    "413": (
        "request_too_large",
        "The body has too many bytes or values.",
        "the body has more than 10000 values",
    ),
    "429": (
        "rate_limit_error",
        "The caller sent more than 600 requests in a minute; `Retry-After` is the wait in seconds.",
        "Request was throttled. Expected available in 12 seconds.",
    ),
    "503": (
        "overloaded_error",
        "The database or a shared store did not answer in time.",
        "the query took too long and was stopped; choose a shorter time range or more filters",
    ),
}
"""Status of an error -> the type in the error body, a description, and an example's message."""

TAG_OF: Final[Mapping[str, str]] = {
    **dict.fromkeys(("summary", "timeseries", "top", "latency", "errors", "cache"), "usage"),
    **dict.fromkeys(("comparison", "outcomes", "stop_reasons"), "usage"),
    **dict.fromkeys(("search", "stop"), "requests"),
}
"""First part of a path under /api/v1/ -> the tag of its group, if it is another word."""

TAGS: Final[Sequence[Mapping[str, Any]]] = [
    {"name": "index", "description": "The URLs of all lists and reports."},
    {"name": "usage", "description": "Tokens, cost, latency, errors and outcomes, summed."},
    {"name": "requests", "description": "Single requests, their transcripts and bodies."},
    {"name": "sessions", "description": "Conversations: requests with the same session id."},
    {
        "name": "exports",
        "description": "Large results as files, written in the background.",
    },
    {"name": "me", "description": "The caller: limits, usage, budgets and own keys."},
    {"name": "keys", "description": "Gateway keys."},
    {"name": "teams", "description": "Teams and their settings."},
    {"name": "users", "description": "Users of the admin and the owners of keys."},
    {"name": "models", "description": "Routes: which upstreams serve a requested model."},
    {"name": "upstreams", "description": "The servers that answer requests."},
    {"name": "prices", "description": "Dated prices of models."},
    {"name": "budgets", "description": "Budgets of teams, keys and users."},
    {"name": "pauses", "description": "Upstreams and models that serve no requests."},
    {"name": "webhooks", "description": "Receivers of events."},
    {"name": "deliveries", "description": "Events that were sent to webhooks and by mail."},
    {"name": "reports", "description": "Saved reports, to be run by their names."},
    {"name": "audit", "description": "The audit log."},
    {
        "name": "organizations",
        "description": "Anthropic's Admin API over the same data: a workspace is a team.",
    },
]
"""The groups of the documentation page, in its order."""
