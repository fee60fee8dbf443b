"""Pauses of upstreams and models over REST."""

from typing import Any, ClassVar

from rest_framework import serializers

from proxy.models import Pause, Upstream

from .base_serializers import ConfigSerializer
from .fields import Linked
from .viewsets import ConfigViewSet


class PauseSerializer(ConfigSerializer):
    """A pause of an upstream, of a model, or of a model at one upstream."""

    upstream = Linked(
        slug_field="name",
        queryset=Upstream.objects.all(),
        required=False,
        allow_null=True,
        help_text="null: every upstream",
    )
    ends_at = serializers.DateTimeField(
        source="ends", required=False, allow_null=True, help_text="null: until it is deleted"
    )
    created_at = serializers.DateTimeField(source="created", read_only=True)

    class Meta:
        model = Pause
        fields = ("id", "upstream", "model", "message", "ends_at", "created_at")


class PauseViewSet(ConfigViewSet):
    """Pauses, including those that have ended. DELETE ends a pause."""

    resource, expandable = "pauses", ("upstream",)
    queryset = Pause.objects.select_related("upstream")
    serializer_class: Any = PauseSerializer
    lookup_url_kwarg, lookup_value_converter = "pause_id", "int"
    filter_columns: ClassVar = {"model": "model", "upstream": "upstream__name"}
    sort_columns: ClassVar = {"id": "pk", "created_at": "created"}
    ordering = ("pk",)
