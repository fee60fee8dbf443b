"""One request as JSON in the API: every recorded field except the conversation."""

from typing import Any

from rest_framework import serializers

from proxy.ledger.maintenance import export
from proxy.models import Exchange
from proxy.reports.core.references import Reference
from proxy.reports.core.rendering import Row


class Fault(serializers.Serializer[Any]):
    type = serializers.CharField(allow_null=True)
    message = serializers.CharField(allow_null=True)
    code = serializers.CharField(allow_null=True)
    source = serializers.CharField(  # type: ignore[assignment]  # DRF removes fields from the class
        allow_null=True, help_text="client, gateway or upstream"
    )


class Client(serializers.Serializer[Any]):
    name = serializers.CharField(allow_null=True)
    version = serializers.CharField(allow_null=True)
    app = serializers.CharField(allow_null=True)
    user_agent = serializers.CharField(allow_null=True)


class TokenSources(serializers.Serializer[Any]):
    input = serializers.CharField()
    output = serializers.CharField()
    cache_read = serializers.CharField()
    cache_write = serializers.CharField()
    reasoning = serializers.CharField()


class RequestRow(serializers.Serializer[Any]):
    id = serializers.CharField(help_text="The request-id header of the response.")
    state = serializers.CharField(help_text="open or closed")
    outcome = serializers.CharField(allow_null=True, help_text="null while the request runs")
    created_at = serializers.CharField()
    finished_at = serializers.CharField(allow_null=True)
    key = Reference("key")
    team = Reference("team")
    user = Reference("user", allow_null=True)
    session_id = serializers.CharField(allow_null=True)
    agent_id = serializers.CharField(allow_null=True)
    parent_agent_id = serializers.CharField(allow_null=True)
    client = Client()
    endpoint = serializers.CharField(allow_null=True)
    api_version = serializers.CharField(allow_null=True)
    betas = serializers.JSONField()
    model_requested = serializers.CharField(allow_null=True)
    model_upstream = serializers.CharField(allow_null=True)
    upstream = Reference("upstream")
    upstream_request_id = serializers.CharField(allow_null=True)
    stream = serializers.BooleanField()
    status = serializers.IntegerField(allow_null=True)
    error = Fault(allow_null=True)
    stop_reason = serializers.CharField(allow_null=True)
    attempts = serializers.IntegerField()
    retry_of = serializers.CharField(
        allow_null=True, help_text="Always null: retries do not name the request they repeat."
    )
    input_tokens = serializers.IntegerField(allow_null=True)
    cache_read_input_tokens = serializers.IntegerField(allow_null=True)
    cache_write_5m_tokens = serializers.IntegerField(allow_null=True)
    cache_write_1h_tokens = serializers.IntegerField(allow_null=True)
    output_tokens = serializers.IntegerField(allow_null=True)
    reasoning_tokens = serializers.IntegerField(allow_null=True)
    web_search_requests = serializers.IntegerField(allow_null=True)
    usage_source = serializers.CharField(help_text="upstream, partial, estimated or none")
    token_sources = TokenSources()
    service_tier = serializers.CharField(allow_null=True)
    speed = serializers.CharField(allow_null=True)
    inference_geo = serializers.CharField(allow_null=True)
    iterations = serializers.JSONField(
        help_text="The billed samplings, if there are several: the token counts are their sums."
    )
    cost_usd = serializers.CharField(allow_null=True, help_text="null: the price is unknown")
    cost_parts = serializers.DictField(
        child=serializers.CharField(), help_text="The cost of each token class, in US dollars."
    )
    price_version = serializers.CharField(
        allow_null=True, help_text="Model and first day of the price that was used."
    )
    priced = serializers.BooleanField()
    price = serializers.JSONField(allow_null=True, help_text="The price that was used.")
    ttft_ms = serializers.FloatField(allow_null=True)
    total_ms = serializers.FloatField(allow_null=True)
    upstream_ms = serializers.FloatField(allow_null=True)
    overhead_ms = serializers.FloatField(allow_null=True)
    queue_ms = serializers.FloatField(allow_null=True)
    output_tps = serializers.FloatField(allow_null=True, help_text="Output tokens per second.")
    request_bytes = serializers.IntegerField()
    response_bytes = serializers.IntegerField()
    tool_calls = serializers.IntegerField()
    tool_names = serializers.JSONField()
    has_images = serializers.BooleanField()
    has_thinking = serializers.BooleanField()
    message_count = serializers.IntegerField()
    tags = serializers.JSONField()
    notes = serializers.JSONField(help_text="What the translation changed.")
    traceparent = serializers.CharField(allow_null=True)
    ip = serializers.CharField(allow_null=True)
    aborted_by_client = serializers.BooleanField()
    redacted = serializers.BooleanField(
        help_text="Always false: stored transcripts are not redacted."
    )
    delivered = serializers.BooleanField()
    previous_request_id = serializers.CharField(allow_null=True)


class LedgerRow(RequestRow):
    """A line of ``exportledger``: the operator also gets what a list does not show."""

    attempt_details = serializers.JSONField(help_text="Each call of an upstream.")
    detail = serializers.CharField(allow_null=True)
    upstream_status = serializers.IntegerField(allow_null=True)
    unknown_events = serializers.JSONField()
    new_from = serializers.IntegerField(allow_null=True)
    preview = serializers.CharField(allow_null=True)
    prompt = serializers.CharField(allow_null=True)
    # the names of 1.0 for token_sources, client.user_agent and previous_request_id
    input_source = serializers.CharField()
    output_source = serializers.CharField()
    cache_read_source = serializers.CharField()
    cache_write_source = serializers.CharField()
    reasoning_source = serializers.CharField()
    user_agent = serializers.CharField(allow_null=True)
    previous_id = serializers.CharField(allow_null=True)


ORDER = tuple(RequestRow().fields)
LEDGER_ORDER = tuple(LedgerRow().fields)


def request_row(row: Exchange) -> Row:
    """Return the exchange as JSON, with the fields of RequestRow in their order."""
    values = export.request_row(row)
    return {name: values[name] for name in ORDER}


def ledger_row(row: Exchange) -> Row:
    """Return the exchange with the fields of LedgerRow in their order."""
    values = export.request_row(row)
    values |= {f"{name}_source": source for name, source in values["token_sources"].items()}
    values |= {
        "user_agent": values["client"]["user_agent"] or "",
        "previous_id": values["previous_request_id"],
    }
    return {name: values[name] for name in LEDGER_ORDER}
