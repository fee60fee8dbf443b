"""Filters of the request list: one form, sent by GET, so that each filtered list has a URL.

No filter reads its choices from the ledger. A value in the URL that is not among the choices, such
as a new stop reason, is applied too, and the form shows it unchanged.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Final

from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils.timezone import now

from proxy.models import DialectName, Outcome, State, Upstream
from proxy.models.ledger import UNPRICED
from proxy.models.ledger_names import person_ids, team_ids
from proxy.models.setup.upstreams import SANDBOXES
from proxy.permissions.row_permissions import reader_of_user, visible_keys, visible_teams

from .filter_kinds import (
    FixedFilter,
    FormFilter,
    SinceFilter,
    TextFilter,
    TimeBounds,
    UntilFilter,
)

MAX_CHOICES: Final = 300
MAX_NUMBER: Final = 10**9


class WithinFilter(FormFilter):
    title = "within"
    parameter_name = "within"
    folded = False
    ranges: ClassVar[Mapping[str, tuple[str, timedelta]]] = {
        "1h": ("the last hour", timedelta(hours=1)),
        "24h": ("24 hours", timedelta(hours=24)),
        "7d": ("7 days", timedelta(days=7)),
        "30d": ("30 days", timedelta(days=30)),
    }

    def select_choices(self) -> Iterable[tuple[str, str]]:
        return [(value, label) for value, (label, _) in self.ranges.items()]

    def bounds(self) -> TimeBounds:
        time_range = self.ranges.get(self.value)
        return (now() - time_range[1] if time_range else None), None

    def condition(self) -> Q:
        since, _ = self.bounds()
        return Q(created__gte=since) if since else Q()


class OutcomeFilter(FixedFilter):
    title = "outcome"
    parameter_name = "result"
    folded = False
    choices_ = {
        "running": ("Running", Q(state=State.OPEN)),
        "failed": (
            "Any failure",
            Q(state=State.CLOSED) & ~Q(outcome__in=(Outcome.COMPLETED, Outcome.CLIENT_GONE)),
        ),
        "closed": ("Finished", Q(state=State.CLOSED)),
        **{value: (str(label).capitalize(), Q(outcome=value)) for value, label in Outcome.choices},
    }


class StatusFilter(FormFilter):
    title = "status"
    parameter_name = "status"
    kind = "text"
    hint = "529 or 5xx"

    def condition(self) -> Q:
        first, rest = self.value[:1], self.value[1:].lower()
        if first in "12345" and rest == "xx":
            return Q(status__gte=int(first) * 100, status__lt=int(first) * 100 + 100)
        number = _parse_number(self.value)
        return Q(pk__in=()) if number is None else Q(status=int(number))


class StopReasonFilter(FixedFilter):
    title = "stop reason"
    parameter_name = "stopped"
    folded = False
    column = "stop_reason"
    choices_ = {
        **{
            reason: (reason, Q(stop_reason=reason))
            for reason in (
                "end_turn",
                "tool_use",
                "max_tokens",
                "stop_sequence",
                "refusal",
                "pause_turn",
                "model_context_window_exceeded",
            )
        },
        "none": ("none (the response did not end normally)", Q(stop_reason="", state=State.CLOSED)),
    }


class PricedFilter(FixedFilter):
    title = "price"
    parameter_name = "cost"
    choices_ = {
        "none": (  # this condition must match the same requests as dashboard.queries.unpriced_in
            "no price, although it used tokens",
            UNPRICED & ~Q(upstream__in=list(SANDBOXES)),
        ),
        "known": ("has a price", Q(cost_nanousd__isnull=False)),
    }


class CostFilter(FormFilter):
    title = "cost at least ($)"
    parameter_name = "cost_from"
    kind = "number"
    hint = "0.50"

    def condition(self) -> Q:
        number = _parse_number(self.value)
        return Q() if number is None else Q(cost_nanousd__gte=int(number.scaleb(9)))


class DurationFilter(FormFilter):
    title = "duration at least (s)"
    parameter_name = "took_from"
    kind = "number"
    hint = "30"

    def condition(self) -> Q:
        number = _parse_number(self.value)
        return Q() if number is None else Q(total_ms__gte=float(number) * 1000)


class ContainsFilter(FixedFilter):
    title = "contains"
    parameter_name = "holds"
    choices_ = {
        "tools": ("tool calls", Q(tool_calls__gt=0)),
        "thinking": ("thinking", Q(has_thinking=True)),
        "images": ("images", Q(has_images=True)),
        "notes": ("translation notes", ~Q(notes=[])),
        "retries": ("more than one attempt", Q(attempts__1__isnull=False)),
        "stream": ("a stream", Q(stream=True)),
        "whole": ("a response without stream", Q(stream=False)),
    }


class NoteFilter(FormFilter):
    """Filter by the "fate" of a translation note, such as "dropped", in the JSON column as text."""

    title = "translation note"
    parameter_name = "note"
    fates: ClassVar[tuple[str, ...]] = (
        "dropped",
        "clamped",
        "renamed",
        "emulated",
        "repaired",
        "ignored",
    )

    def select_choices(self) -> Iterable[tuple[str, str]]:
        return [(fate, fate) for fate in self.fates]

    def apply(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        if self.value not in self.fates:
            return rows.none()
        with_text = rows.exclude(notes=[]).alias(notes_text=Cast("notes", TextField()))
        found: QuerySet[Any] = with_text.filter(notes_text__contains=f'"{self.value}"')
        return found


class DialectFilter(FixedFilter):
    title = "dialect"
    parameter_name = "spoke"
    choices_ = {value: (str(label), Q(dialect=value)) for value, label in DialectName.choices}


class ModelFilter(TextFilter):
    title = "model"
    parameter_name = "model_requested"
    folded = False
    hint = "claude-sonnet-5"


class UserFilter(TextFilter):
    title = "user"
    parameter_name = "user"

    def condition(self) -> Q:
        return Q(user__in=person_ids(self.value))


class ClientFilter(TextFilter):
    title = "client"
    parameter_name = "client_name"
    hint = "claude-cli"


class ClientVersionFilter(TextFilter):
    title = "client version"
    parameter_name = "client_version"
    hint = "2.1.329"


class SessionFilter(TextFilter):
    title = "session"
    parameter_name = "session_id"


class TeamFilter(FormFilter):
    title = "team"
    parameter_name = "of_team"
    folded = False

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any
    ) -> None:
        if "team" in params:  # a link of an earlier version
            params.setdefault("of_team", params.pop("team"))
        super().__init__(request, params, model, model_admin)

    def expected_parameters(self) -> list[str | None]:
        return ["of_team", "team"]

    def select_choices(self) -> Iterable[tuple[str, str]]:
        teams = visible_teams(reader_of_user(self.request.user)).order_by("name")
        return [(name, name) for name in teams.values_list("name", flat=True)[:MAX_CHOICES]]

    def condition(self) -> Q:
        return Q(team__in=team_ids(self.value))


class UpstreamFilter(FormFilter):
    title = "upstream"
    parameter_name = "via"

    def select_choices(self) -> Iterable[tuple[str, str]]:
        """Return all upstreams if the user may view upstreams, else only the one in the URL."""
        if not self.request.user.has_perm("proxy.view_upstream"):
            return []
        found = Upstream.objects.order_by("name").values_list("name", flat=True)
        return [(name, name) for name in found[:MAX_CHOICES]]

    def condition(self) -> Q:
        return Q(upstream=self.value)


class KeyFilter(FormFilter):
    title = "key"
    parameter_name = "key_id"
    folded = False

    def select_choices(self) -> Iterable[tuple[str, str]]:
        keys = visible_keys(reader_of_user(self.request.user)).order_by("team__name", "name")
        found = keys.values_list("pk", "team__name", "name")[:MAX_CHOICES]
        return [(str(pk), f"{team}/{name}") for pk, team, name in found]

    def condition(self) -> Q:
        number = _parse_number(self.value)
        return Q(pk__in=()) if number is None else Q(key_id=int(number))


def _parse_number(text: str) -> Decimal | None:
    """Return the number if it is from 0 to ``MAX_NUMBER``, else None."""
    try:
        number = Decimal(text.replace(",", "."))
    except InvalidOperation:
        return None
    return number if number.is_finite() and 0 <= number <= MAX_NUMBER else None


FILTERS: tuple[type[FormFilter], ...] = (
    WithinFilter,
    TeamFilter,
    KeyFilter,
    ModelFilter,
    OutcomeFilter,
    StopReasonFilter,
    SinceFilter,
    UntilFilter,
    UserFilter,
    UpstreamFilter,
    StatusFilter,
    PricedFilter,
    CostFilter,
    DurationFilter,
    ContainsFilter,
    NoteFilter,
    DialectFilter,
    ClientFilter,
    ClientVersionFilter,
    SessionFilter,
)
