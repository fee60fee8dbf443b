"""Write the configuration in the database as a bridge.toml that ``applyconfig`` accepts.

The file contains references to secrets, but no secrets. A gateway key has no such reference,
because the database has only the digest of its secret; an upstream whose secret is encrypted in the
database has no reference either.
"""

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from django.db.models import Prefetch

from proxy.ledger.transcripts.visible_text import INVISIBLE
from proxy.models import (
    ApiKey,
    Budget,
    Price,
    Route,
    RouteTarget,
    Team,
    Upstream,
    Webhook,
)
from proxy.models.setup.prices import FIGURES
from proxy.models.setup.upstreams import SANDBOXES

from .load import starter_prices

Table = Mapping[str, Any]


def export(*, starter: bool = False) -> str:
    """Return the configuration as TOML, without defaults and the built-in sandbox upstreams.

    ``starter``: also the prices that the first start created and that nobody changed.
    """
    from .entries import SERIALIZERS  # noqa: PLC0415 - ``rows`` needs only ``toml_value``

    shipped = {(one["model"], one["since"], one["source"]): one for one in starter_prices()}

    def is_exported(price: Price) -> bool:
        entry = shipped.get((price.model, price.since, price.source))
        is_starter = (
            entry is not None
            and not (price.upstream or price.variant or price.managed)
            and all(getattr(price, figure) == entry.get(figure) for figure in FIGURES)
        )
        return starter or not is_starter

    rows: Mapping[str, Iterable[Any]] = {
        "upstreams": Upstream.objects.exclude(name__in=SANDBOXES),
        "routes": Route.objects.select_related("team").prefetch_related(
            Prefetch(
                "targets",
                RouteTarget.objects.exclude(upstream__name__in=SANDBOXES).select_related(
                    "upstream"
                ),
            )
        ),
        "prices": filter(
            is_exported,
            Price.objects.exclude(upstream__name__in=SANDBOXES).select_related("upstream"),
        ),
        "teams": Team.objects.prefetch_related("budgets"),
        "keys": ApiKey.objects.filter(revoked=None, successor=None)
        .select_related("team", "user")
        .prefetch_related("budget_set"),
        "budgets": Budget.objects.exclude(user=None).select_related("user"),
        "webhooks": Webhook.objects.select_related("team"),
    }
    tables = []
    for kind, serializer in SERIALIZERS.items():
        entry = serializer()
        for row in rows[kind]:
            table = entry.to_representation(row)
            if kind != "routes" or "targets" in table:
                tables.append(dump_table(kind, table))
    return "\n".join(tables)


def dump_table(kind: str, table: Table) -> str:
    """Return one table of bridge.toml as TOML text, without absent and empty values."""
    lines = [
        f"{name} = {toml_value(value)}" for name, value in table.items() if not _is_absent(value)
    ]
    return "\n".join((f"[[{kind}]]", *lines, ""))


def _is_absent(value: Any) -> bool:
    """Return whether to leave a value out: TOML has no null, and empty values are the defaults."""
    return value is None or value in ({}, [], "")


def toml_value(value: Any) -> str:
    """Return a value as TOML writes it."""
    match value:
        case dict():
            pairs = (f"{_name(k)} = {toml_value(v)}" for k, v in value.items() if v is not None)
            return f"{{ {', '.join(pairs)} }}"
        case list():
            return f"[{', '.join(map(toml_value, value))}]"
        case Decimal():
            return f'"{value.normalize():f}"'
        case dt.date():  # matches datetime too, which is a subclass
            return value.isoformat()
        case _:
            text = json.dumps(value, ensure_ascii=False)
            return INVISIBLE.sub(
                lambda found: "".join(f"\\U{ord(char):08X}" for char in found[0]), text
            )


def _name(name: str) -> str:
    bare = name and name.replace("_", "").replace("-", "").isalnum() and name.isascii()
    return name if bare else json.dumps(name)
