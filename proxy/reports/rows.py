"""One request as the API shows it: every recorded field but the conversation."""

from typing import Any

from rest_framework import serializers

from proxy.models import Exchange
from proxy.record import export

from .answers import Row
from .sums import usd


class Named(serializers.Serializer[Any]):
    id = serializers.CharField(allow_null=True)
    name = serializers.CharField()


class Person(serializers.Serializer[Any]):
    id = serializers.CharField()
    email = serializers.CharField(allow_null=True)


class Fault(serializers.Serializer[Any]):
    type = serializers.CharField(allow_null=True)
    message = serializers.CharField(allow_null=True)
    code = serializers.CharField(allow_null=True)
    source = serializers.CharField(  # type: ignore[assignment]  # DRF takes fields off the class
        allow_null=True, help_text="client, gateway or upstream"
    )


class Client(serializers.Serializer[Any]):
    name = serializers.CharField(allow_null=True)
    version = serializers.CharField(allow_null=True)
    app = serializers.CharField(allow_null=True)
    user_agent = serializers.CharField(allow_null=True)


class Answering(serializers.Serializer[Any]):
    id = serializers.CharField(allow_null=True)
    dialect = serializers.CharField(allow_null=True)


class TokenSources(serializers.Serializer[Any]):
    input = serializers.CharField()
    output = serializers.CharField()
    cache_read = serializers.CharField()
    cache_write = serializers.CharField()
    reasoning = serializers.CharField()


class RequestRow(serializers.Serializer[Any]):
    id = serializers.CharField(help_text="The request-id that the client saw.")
    state = serializers.CharField(help_text="open or closed")
    outcome = serializers.CharField(allow_null=True, help_text="null while it runs")
    created_at = serializers.CharField()
    finished_at = serializers.CharField(allow_null=True)
    key = Named()
    team = Named()
    user = Person(allow_null=True)
    session_id = serializers.CharField(allow_null=True)
    agent_id = serializers.CharField(allow_null=True)
    parent_agent_id = serializers.CharField(allow_null=True)
    client = Client()
    endpoint = serializers.CharField(allow_null=True)
    api_version = serializers.CharField(allow_null=True)
    betas = serializers.JSONField()
    model_requested = serializers.CharField(allow_null=True)
    model_upstream = serializers.CharField(allow_null=True)
    upstream = Answering()
    upstream_request_id = serializers.CharField(allow_null=True)
    stream = serializers.BooleanField()
    status = serializers.IntegerField(allow_null=True)
    error = Fault(allow_null=True)
    stop_reason = serializers.CharField(allow_null=True)
    attempts = serializers.IntegerField()
    retry_of = serializers.CharField(
        allow_null=True, help_text="null: nobody says which request a retry repeats."
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
    cost_usd = serializers.CharField(allow_null=True, help_text="null: no price is known")
    cost_parts = serializers.DictField(
        child=serializers.CharField(), help_text="The cost of each token class, in dollars."
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
    output_tps = serializers.FloatField(allow_null=True, help_text="Output tokens a second.")
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
    redacted = serializers.BooleanField(help_text="false: nothing is blotted out of a transcript.")
    delivered = serializers.BooleanField()
    previous_request_id = serializers.CharField(allow_null=True)


SOURCES = tuple(TokenSources().fields)
ORDER = tuple(RequestRow().fields)


def request_row(row: Exchange) -> Row:
    """In the order of RequestRow, so that CSV columns are the same whichever row is first."""
    values = export.request_row(row)
    values["client"]["user_agent"] = row.user_agent or None
    values |= {
        "token_sources": {name: getattr(row, f"{name}_source") for name in SOURCES},
        "cost_usd": usd(row.cost_nanousd),
        "price": row.price,
        "previous_request_id": row.previous_id or None,
    }
    return {name: values[name] for name in ORDER}
