"""Serializers of the configuration's rows: one shape for responses and for request bodies."""

from typing import Any, ClassVar, Final

from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError as ModelInvalid
from rest_framework import serializers

from proxy.ledger.maintenance.export import key_id
from proxy.models import ApiKey, Budget, Price, Route, RouteTarget, Scope, Team, Upstream
from proxy.models.setup.columns import A_SECRET, SEALED, settings_of
from proxy.models.setup.keys import secret_columns
from proxy.models.setup.prices import DIMENSIONS
from proxy.permissions.team_grants import granted_teams
from proxy.permissions.usernames import TAKEN, is_taken
from proxy.reports.core.query_parameters import Number
from proxy.reports.core.references import reference_of
from proxy.reports.usage.budgets import state_of
from proxy.secrets import new_secret

from .base_serializers import ConfigSerializer, StrictSerializer
from .fields import MAX_ITEMS, Linked, LinkedKey, Named, RelatedNames

ID_IS_NAME: Final = "The id in paths, filters and bodies: the name."


def messages_only() -> Any:
    """Return the scopes of a key that is created without a list of scopes."""
    return [Scope.MESSAGES.value]


class KeySerializer(ConfigSerializer):
    """A gateway key, without its secret."""

    id = serializers.SerializerMethodField(help_text="The id in paths, filters and bodies.")
    team = Linked(slug_field="name", queryset=Team.objects.all())
    user = Linked(
        slug_field="username", queryset=User.objects.all(), required=False, allow_null=True
    )
    created_at = serializers.DateTimeField(source="created", read_only=True)
    expires_at = serializers.DateTimeField(source="expires", required=False, allow_null=True)
    revoked_at = serializers.DateTimeField(source="revoked", read_only=True, allow_null=True)
    last_used_at = serializers.DateTimeField(source="last_used", read_only=True, allow_null=True)
    has_secret = serializers.BooleanField(
        read_only=True,
        help_text="false: the key is unusable until `createkey --team T --name N` sets a secret.",
    )

    class Meta:
        model = ApiKey
        fields = (
            "id", "name", "team", "user", "prefix", "has_secret", "scopes", "models_allowed",
            "limits", "ip_allow", "options", "managed", "created_at", "expires_at", "revoked_at",
            "last_used_at",
        )  # fmt: skip
        read_only_fields = ("prefix", "managed")
        validators = ()
        extra_kwargs: ClassVar = {
            "scopes": {"default": messages_only},
            "prefix": {"help_text": "The start of the secret. The secret itself is not stored."},
            "managed": {"help_text": "True if bridge.toml declares it."},
        }

    def get_id(self, key: ApiKey) -> str:
        return str(key_id(key.pk))

    def create(self, validated_data: dict[str, Any]) -> Any:
        """Create the key with a new secret, which only the response to this request contains."""
        secret = new_secret()
        for name, value in secret_columns(secret).items():
            setattr(validated_data["row"], name, value)
        self.new_secret = secret
        return super().create(validated_data)


class TeamSerializer(ConfigSerializer):
    """A team with its settings."""

    id = serializers.CharField(source="name", read_only=True, help_text=ID_IS_NAME)
    created_at = serializers.DateTimeField(source="created", read_only=True)

    class Meta:
        model = Team
        fields = (
            "id", "name", "store", "retention_days", "models_allowed", "limits", "member_keys",
            "managed", "created_at",
        )  # fmt: skip
        read_only_fields = ("managed",)
        extra_kwargs: ClassVar = {
            "name": {"validators": []},
            "store": {"help_text": "full, or metadata: conversations are not stored"},
        }


class UserSerializer(ConfigSerializer):
    """A user, who signs in through the provider or gets a password in the admin."""

    SEPARATE = frozenset({"groups"})

    id = serializers.CharField(source="username", read_only=True, help_text=ID_IS_NAME)
    name = serializers.CharField(source="username", max_length=150)
    groups = RelatedNames(
        child=Named(slug_field="name", queryset=Group.objects.all()),
        required=False,
        max_length=MAX_ITEMS,
        help_text="Roles, and the teams in which they count: `team:<name>`, or `team:*` for all.",
    )
    teams = serializers.SerializerMethodField(
        help_text="The teams that the groups grant; `*`: all. Empty: nothing but own requests.",
    )
    joined_at = serializers.DateTimeField(source="date_joined", read_only=True)
    last_login_at = serializers.DateTimeField(source="last_login", read_only=True, allow_null=True)

    class Meta:
        model = User
        fields = (
            "id", "name", "email", "is_active", "is_staff", "is_superuser", "groups", "teams",
            "joined_at", "last_login_at",
        )  # fmt: skip

    def get_teams(self, user: User) -> list[str]:
        return granted_teams(user)

    def complete(self, row: User, attrs: dict[str, Any]) -> None:
        if not self.instance:
            row.set_unusable_password()
        if (not self.instance or row.username != self.instance.username) and is_taken(row.username):
            raise self.renamed({"username": [TAKEN]})

    def save_separate(self, row: User, values: dict[str, Any]) -> None:
        if "groups" in values:
            row.groups.set(values["groups"])


class TargetSerializer(StrictSerializer):
    """An upstream and the model that it is asked for."""

    upstream = Linked(slug_field="name", queryset=Upstream.objects.all())
    weight = Number(min_value=0, max_value=1_000_000, default=1)

    class Meta:
        model = RouteTarget
        fields = ("upstream", "model", "weight", "when")
        extra_kwargs: ClassVar = {
            "model": {"default": "", "help_text": "Empty: the model name of the request."},
            "when": {"default": dict},
        }


class RouteSerializer(ConfigSerializer):
    """A route. The gateway tries its targets in the order of the list."""

    SEPARATE = frozenset({"targets"})

    team = Linked(
        slug_field="name",
        queryset=Team.objects.all(),
        required=False,
        allow_null=True,
        help_text="null: every team",
    )
    targets = TargetSerializer(many=True, min_length=1, max_length=MAX_ITEMS)  # type: ignore[call-arg]  # of ListSerializer

    class Meta:
        model = Route
        fields = ("id", "model", "team", "position", "targets", "managed")
        read_only_fields = ("managed",)
        validators = ()
        extra_kwargs: ClassVar = {
            "model": {"help_text": "The requested model: a name or a glob."},
            "position": {"help_text": "If several globs match, the lowest position is used."},
        }

    def save_separate(self, row: Route, values: dict[str, Any]) -> None:
        if "targets" in values:
            row.targets.all().delete()
            for position, target in enumerate(values["targets"]):
                RouteTarget.objects.create(route=row, position=position, **target)


class UpstreamSerializer(ConfigSerializer):
    """An upstream, without its API key."""

    SEPARATE = frozenset({"api_key"})

    id = serializers.CharField(source="name", read_only=True, help_text=ID_IS_NAME)
    api_key = serializers.CharField(
        write_only=True,
        required=False,
        max_length=4096,
        help_text="Stored encrypted for this base URL and never returned.",
    )
    credentials_kind = serializers.SerializerMethodField(
        help_text="How a key that expires is fetched: aws, google, azure or command; else null."
    )
    has_secret = serializers.SerializerMethodField(
        help_text="Whether an API key is set. Neither the key nor its location is shown."
    )

    class Meta:
        model = Upstream
        fields = (
            "id", *settings_of(Upstream, "secret"), "api_key", "api_key_from", "has_secret",
            "credentials_kind", "managed",
        )  # fmt: skip
        read_only_fields = ("managed",)
        extra_kwargs: ClassVar = {
            "name": {"validators": []},
            "api_key_from": {"source": "secret", "write_only": True},
            "credentials": {"write_only": True},
            "extra_body": {"write_only": True},
        }

    def get_has_secret(self, upstream: Upstream) -> bool:
        return bool(upstream.secret)

    def get_credentials_kind(self, upstream: Upstream) -> str | None:
        stored: Any = upstream.credentials  # after a manual edit, it may have another type
        kind = stored.get("kind") if isinstance(stored, dict) else None
        return None if kind is None else str(kind)

    def validate_api_key_from(self, value: Any) -> Any:
        if SEALED in value:
            raise serializers.ValidationError(A_SECRET)
        return value

    def complete(self, row: Upstream, attrs: dict[str, Any]) -> None:
        if "api_key" in attrs:
            try:
                row.store_secret(attrs["api_key"])
            except ModelInvalid as error:
                raise serializers.ValidationError({"api_key": error.messages}) from None


class PriceSerializer(ConfigSerializer):
    """US dollars per million tokens from a date on, as decimal strings; null: priced as input."""

    upstream = Linked(
        slug_field="name",
        queryset=Upstream.objects.all(),
        required=False,
        allow_null=True,
        help_text="null: every upstream with this model",
    )

    class Meta:
        model = Price
        fields = (
            "id", "upstream", "model", *DIMENSIONS, "since", "input", "output", "cache_read",
            "cache_write_5m", "cache_write_1h", "source", "managed",
        )  # fmt: skip
        read_only_fields = ("managed",)
        validators = ()


class BudgetSerializer(ConfigSerializer):
    """A budget of exactly one team, key or user, with its state in the current period."""

    id = serializers.CharField(read_only=True)
    owner = serializers.CharField(read_only=True, help_text="team:name, key:team/name or user:name")
    starting_at = serializers.DateTimeField(read_only=True)
    resets_at = serializers.DateTimeField(read_only=True)
    spent_usd = serializers.CharField(
        read_only=True,
        help_text="Settled requests only. A lower bound if some requests have no price.",
    )
    left_usd = serializers.CharField(read_only=True)
    unpriced_requests = serializers.IntegerField(read_only=True)
    forecast_usd = serializers.CharField(
        read_only=True, help_text="Projected spend at the end of the period, at the current rate."
    )
    state = serializers.CharField(read_only=True, help_text="ok, near (80 %) or over")
    team = Linked(slug_field="name", queryset=Team.objects.all(), required=False, allow_null=True)
    key = LinkedKey(slug_field="pk", queryset=ApiKey.objects.all(), required=False, allow_null=True)
    user = Linked(
        slug_field="username", queryset=User.objects.all(), required=False, allow_null=True
    )

    class Meta:
        model = Budget
        fields = (
            "id", "owner", "models_covered", "period", "tz", "hard", "starting_at", "resets_at",
            "limit_usd", "spent_usd", "left_usd", "unpriced_requests", "forecast_usd", "state",
            "team", "key", "user", "managed",
        )  # fmt: skip
        read_only_fields = ("managed",)
        extra_kwargs: ClassVar = {"tz": {"source": "zone"}, "limit_usd": {"source": "usd"}}

    def to_representation(self, instance: Budget) -> dict[str, Any]:
        return {
            **state_of(instance),
            "team": reference_of(instance.team),
            "key": reference_of(instance.key),
            "user": reference_of(instance.user),
            "managed": instance.managed,
        }
