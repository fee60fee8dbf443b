"""The schema of the configuration file bridge.toml: a struct with defaults for each kind of table.

``load.py`` converts a file to a ``BridgeFile``, or raises an error that names the path of the wrong
value.
"""

import datetime as dt
import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from proxy.models.setup.credential_types import AnySettings
from proxy.models.setup.json_field_types import (
    Conditions,
    Count,
    CoveredModels,
    Limits,
    MemberKeys,
    Model,
    Network,
    Options,
    ScopeName,
    SecretReference,
    Strict,
)
from proxy.models.setup.upstream_connection import Connection

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Username = Annotated[str, Meta(min_length=1, max_length=150)]
Seconds = Annotated[float, Meta(gt=0)]


class Timeouts(Strict):
    connect_s: Seconds | UnsetType = UNSET
    first_byte_s: Seconds | UnsetType = UNSET
    idle_s: Seconds | UnsetType = UNSET
    total_s: Seconds | UnsetType = UNSET


class Upstream(Strict):
    name: Name
    dialect: Literal["responses", "chat", "anthropic"]
    base_url: str
    api_key: SecretReference | None = None
    credentials: AnySettings | None = None  # for a credential that expires
    api_version: str = ""  # of Azure OpenAI, if the base URL does not end with /openai/v1
    profile: str = ""  # if empty: "anthropic" for the dialect "anthropic", else "generic"
    capabilities: dict[str, Any] = {}
    model_capabilities: dict[str, dict[str, Any]] = {}  # by model name or glob
    timeouts: Timeouts = field(default_factory=Timeouts)
    extra_body: dict[str, Any] = {}
    when_client_leaves: Literal["abort", "drain"] = "abort"
    connection_reuse: Literal["shared", "key", "never"] = "shared"
    connection: Connection = field(default_factory=Connection)
    allow_http: bool = False
    enabled: bool = True


class Target(Strict):
    upstream: Name
    model: Annotated[str, Meta(max_length=200)] = "*"  # "*": the model that the client sent
    weight: Annotated[int, Meta(ge=0)] = 1  # 0: used only when the other targets fail
    when: Conditions = field(default_factory=Conditions)


class Route(Strict):
    model: Model
    targets: Annotated[list[Target], Meta(min_length=1)]
    team: Name | None = None


class Figures(Strict):
    """The prices of a model by token class, in US dollars per million tokens."""

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write_5m: Decimal | None = None
    cache_write_1h: Decimal | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            usd = getattr(self, name)
            if usd is not None:
                _check_usd(usd, name)


Dimension = Annotated[str, Meta(max_length=32)]


class Price(Strict):
    model: Model
    since: dt.date
    usd: Figures
    upstream: Name | None = None  # if absent, the price applies to every upstream
    # The price of this tier, speed or region; absent: of the standard one.
    service_tier: Dimension = ""
    speed: Dimension = ""
    inference_geo: Dimension = ""
    source: Annotated[str, Meta(max_length=300)] = ""


class Budget(Strict):
    usd: Decimal
    period: Literal["day", "week", "month"] = "month"
    zone: str = "UTC"
    models: CoveredModels = []
    hard: bool = True
    emails: list[str] = []  # addresses that get a mail at 80 % and at 100 % of the budget

    def __post_init__(self) -> None:
        _check_usd(self.usd, "usd")


class OwnedBudget(Budget):
    """A budget in ``[[budgets]]``, which has its owner in ``team``, ``key`` or ``user``."""

    team: Name | None = None
    key: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}/[A-Za-z0-9_-]{1,64}$")] | None = None
    user: Username | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len([owner for owner in (self.team, self.key, self.user) if owner is not None]) != 1:
            raise ValueError('a budget is for one of team = "T", key = "T/K", user = "U"')

    @property
    def owner(self) -> str:
        """Return the owner for messages: ``team platform``, ``key platform/ci``, ``user ada``."""
        if self.team is not None:
            return f"team {self.team}"
        return f"key {self.key}" if self.key is not None else f"user {self.user}"


class Team(Strict):
    name: Name
    store: Literal["full", "metadata"] = "full"
    retention_days: Count = 90
    budgets: list[Budget] = []
    limits: Limits = field(default_factory=Limits)
    member_keys: MemberKeys = field(default_factory=MemberKeys)
    models: list[Model] = []


class Key(Strict):
    team: Name
    name: Name
    user: Username | None = None  # if absent, the key belongs to the team as a whole
    scopes: Annotated[list[ScopeName], Meta(min_length=1)] = field(
        default_factory=lambda: ["messages"]
    )
    secret: SecretReference | None = None  # if absent, the command createkey generates a secret
    expires: Any = None
    budgets: list[Budget] = []
    limits: Limits = field(default_factory=Limits)
    models: list[Model] = []
    ip_allow: list[Network] = []
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        self.expires = _expiry(self.expires)


class Webhook(Strict):
    name: Name
    url: str
    events: list[str] = []  # empty: all events
    secret: SecretReference | None = None  # if absent, the secret that the admin stored is used
    previous_secret: SecretReference | None = None  # signs too, during a rotation
    team: Name | None = None  # if absent, the events of all teams and upstreams
    enabled: bool = True


class BridgeFile(Strict):
    upstreams: list[Upstream] = []
    routes: list[Route] = []
    prices: list[Price] = []
    teams: list[Team] = []
    keys: list[Key] = []
    budgets: list[OwnedBudget] = []
    webhooks: list[Webhook] = []


def _check_usd(usd: Decimal, name: str) -> None:
    """Raise ValueError if the database column cannot store the amount.

    The column has eight digits before and six digits after the decimal point.
    """
    if not usd.is_finite() or not 0 <= usd < 10**8 or usd != round(usd, 6):
        raise ValueError(f'{name} is an amount such as "1.25": not negative, six decimals at most')


def _expiry(expires: Any) -> dt.datetime | None:
    """Return when a key expires. A TOML date means the beginning of that day in UTC."""
    if isinstance(expires, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", expires):
        raise ValueError("expires is a date without quotes: 2027-01-01")
    if isinstance(expires, dt.datetime):
        return expires if expires.tzinfo else expires.replace(tzinfo=dt.UTC)
    if isinstance(expires, dt.date):
        return dt.datetime.combine(expires, dt.time(), dt.UTC)
    if expires is not None:
        raise ValueError("expires is a date: 2027-01-01")
    return None
