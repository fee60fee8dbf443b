"""Webhooks and their deliveries over REST."""

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.webhooks import record_test_event, rotate_secret, send_again
from proxy.models import EventType, Team, Webhook, WebhookDelivery
from proxy.permissions.row_permissions import visible_deliveries, visible_webhooks
from proxy.permissions.write_permissions import ADD, CHANGE, faults
from proxy.reports.core.idempotency import idempotent
from proxy.reports.core.permissions import caller_of
from proxy.reports.core.references import Reference, Row

from .base_serializers import ConfigSerializer, StrictSerializer
from .fields import Linked
from .viewsets import ConfigViewSet


class WebhookSerializer(ConfigSerializer):
    """A webhook, without its secrets."""

    team = Linked(
        slug_field="name",
        queryset=Team.objects.all(),
        required=False,
        allow_null=True,
        help_text="The team whose events it gets; null: the events of all teams and upstreams.",
    )
    created_at = serializers.DateTimeField(source="created", read_only=True)

    class Meta:
        model = Webhook
        fields = ("id", "name", "team", "url", "events", "enabled", "managed", "created_at")
        read_only_fields = ("managed",)
        extra_kwargs: ClassVar = {
            "events": {"help_text": f"Empty: all. Known: {', '.join(EventType.values)}."}
        }

    def complete(self, row: Webhook, attrs: dict[str, Any]) -> None:
        """Give a new webhook its secret, which only the response to this request contains."""
        if self.instance is None:
            self.new_secret = row.give_secret()


class WebhookWithSecret(WebhookSerializer):
    secret = serializers.CharField(help_text="The signing secret. No other response contains it.")

    class Meta(WebhookSerializer.Meta):
        fields = (*WebhookSerializer.Meta.fields, "secret")  # type: ignore[assignment]  # one more


@extend_schema_view(create=extend_schema(responses={201: WebhookWithSecret}))
class WebhookViewSet(ConfigViewSet):
    """Webhooks. Only a superuser, or a key of a superuser, writes them.

    Only the responses to POST have a secret.
    """

    resource, of_teams = "webhooks", True
    queryset = Webhook.objects.select_related("team")
    serializer_class: Any = WebhookSerializer
    lookup_url_kwarg, lookup_value_converter = "webhook_id", "int"
    filter_columns: ClassVar = {"team": "team__name", "name": "name"}
    sort_columns: ClassVar = {"id": "pk", "name": "name", "created_at": "created"}
    ordering = ("pk",)
    write_actions: ClassVar = {**ConfigViewSet.write_actions, "rotate": CHANGE}
    part_models = (WebhookDelivery,)

    def get_queryset(self) -> "QuerySet[Webhook]":
        return visible_webhooks(self.reader)

    @extend_schema("webhook_rotate", request=None, responses={201: WebhookWithSecret})
    @action(detail=True, methods=["post"])
    @idempotent
    @sensitive_variables()
    def rotate(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Issue a new secret. For 24 hours events are signed with the old secret too."""
        webhook = self.get_object()
        secret = rotate_secret(webhook)
        body = {**self.get_serializer(webhook).data, "secret": str(secret)}
        return Response(body, status=status.HTTP_201_CREATED)


class DeliverySerializer(StrictSerializer):
    """An event for one receiver, with the result of its last attempt."""

    webhook_id: Any = serializers.PrimaryKeyRelatedField(
        source="webhook", queryset=Webhook.objects.all()
    )
    email = serializers.CharField(
        read_only=True, help_text="The address of a mail; empty: the receiver is a webhook."
    )
    event_id = serializers.CharField(read_only=True, help_text="The header `webhook-id`.")
    event_type = serializers.CharField(source="event.type", read_only=True)
    team = serializers.SerializerMethodField()
    body = serializers.CharField(
        source="event.body", read_only=True, help_text="The JSON text that is sent."
    )
    created_at = serializers.DateTimeField(source="event.created", read_only=True)
    next_attempt_at = serializers.SerializerMethodField(help_text="null: no attempt follows.")
    attempted_at = serializers.DateTimeField(source="attempted", read_only=True, allow_null=True)

    class Meta:
        model = WebhookDelivery
        fields = (
            "id", "webhook_id", "email", "event_id", "event_type", "team", "state", "attempts",
            "created_at", "attempted_at", "next_attempt_at", "status", "answer", "error", "body",
        )  # fmt: skip
        read_only_fields = ("state", "attempts", "status", "answer", "error")
        extra_kwargs: ClassVar = {
            "status": {"help_text": "HTTP status of the last attempt; null: no response."},
            "answer": {"help_text": "The first 500 characters of the last response."},
        }

    @extend_schema_field(Reference("team", allow_null=True))
    def get_team(self, delivery: WebhookDelivery) -> Row | None:
        name = delivery.event.team
        return {"id": name, "name": name} if name else None

    def get_next_attempt_at(self, delivery: WebhookDelivery) -> str | None:
        waits = delivery.state == "waiting"
        return serializers.DateTimeField().to_representation(delivery.due) if waits else None

    def validate_webhook_id(self, webhook: Webhook) -> Webhook:
        caller = caller_of(self.context["request"])
        for _, why in faults(caller, ADD, WebhookDelivery, WebhookDelivery(webhook=webhook)):
            raise serializers.ValidationError(why)
        return webhook

    def create(self, validated_data: Mapping[str, Any]) -> WebhookDelivery:
        return record_test_event(validated_data["webhook"])


class DeliveryViewSet(ConfigViewSet):
    """Deliveries of events of the last 30 days to webhooks and mail addresses.

    A POST sends a test event to a webhook.
    """

    resource, of_teams = "deliveries", True
    queryset = WebhookDelivery.objects.select_related("event", "webhook__team")
    serializer_class: Any = DeliverySerializer
    http_method_names = ["get", "head", "options", "post"]  # noqa: RUF012  # Django's View declares a list, too
    lookup_url_kwarg, lookup_value_converter = "delivery_id", "int"
    filter_columns: ClassVar = {
        "webhook_id": "webhook", "state": "state", "event_type": "event__type",
    }  # fmt: skip
    sort_columns: ClassVar = {"id": "pk"}
    ordering = ("-pk",)
    write_actions: ClassVar = {"create": ADD, "redeliver": CHANGE}

    def get_queryset(self) -> "QuerySet[WebhookDelivery]":
        return visible_deliveries(self.reader)

    @extend_schema("delivery_redeliver", request=None, responses=DeliverySerializer)
    @action(detail=True, methods=["post"])
    @idempotent
    def redeliver(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Send the event again now, with the same event id and a new series of attempts."""
        delivery = self.get_object()
        send_again(delivery)
        return Response(self.get_serializer(delivery).data)
