"""Filters of the request list: one form, sent by GET, so that each filtered list has a URL.

No filter reads its choices from the ledger. A value in the URL that is not among the choices, such
as a new stop reason, is applied too, and the form shows it unchanged.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.timezone import now

from proxy.admin.core.time_zone import viewer_zone
from proxy.models import DialectName, Outcome, State, Upstream
from proxy.models.ledger import UNPRICED
from proxy.models.setup.upstreams import SANDBOXES
from proxy.permissions.row_permissions import reader_of_user, visible_keys, visible_teams

MAX_CHOICES: Final = 300
MAX_NUMBER: Final = 10**9


@dataclass(frozen=True, slots=True)
class Option:
    value: str
    label: str
    selected: bool


class FormFilter(admin.ListFilter):
    """One field of the filter form. ``kind`` is its widget: select, text, number or datetime."""

    parameter_name: ClassVar[str]
    kind: ClassVar[str] = "select"
    hint: ClassVar[str] = ""
    folded: ClassVar[bool] = True
    """Whether the form shows the field only under "More filters"."""

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any
    ) -> None:
        super().__init__(request, params, model, model_admin)
        given = params.pop(self.parameter_name, None)
        if given is not None:
            self.used_parameters[self.parameter_name] = given
        last = given[-1] if isinstance(given, list) and given else given
        self.value = str(last or "").strip().replace("\x00", "")
        self.request = request

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return [self.parameter_name]

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield nothing, so that the theme's sidebar shows no filters: the form shows them."""
        return iter(())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return self.apply(queryset) if self.value else queryset

    def apply(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(self.condition())

    def condition(self) -> Q:
        raise NotImplementedError

    def select_choices(self) -> Iterable[tuple[str, str]]:
        """Return (value, label) of each choice, if ``kind`` is select."""
        return ()

    @property
    def has_choices(self) -> bool:
        """Whether the form shows the field: a select without choices is hidden."""
        return self.kind != "select" or bool(self.options)

    @cached_property
    def options(self) -> list[Option]:
        choices = list(self.select_choices())
        if self.value and self.value not in dict(choices):
            choices.append((self.value, self.value))
        return [Option(value, label, value == self.value) for value, label in choices]

    @property
    def value_label(self) -> str:
        """The label of the filter's current value."""
        if self.kind != "select":
            return self.value
        return next((option.label for option in self.options if option.selected), self.value)


class FixedFilter(FormFilter):
    """A select with fixed choices. ``choices_`` maps each value to (label, condition)."""

    choices_: ClassVar[Mapping[str, tuple[str, Q]]]
    column: ClassVar[str] = ""
    """The column that is compared with a value that is not among the choices. If it is empty, such
    a value matches no row."""

    def select_choices(self) -> Iterable[tuple[str, str]]:
        return [(value, label) for value, (label, _) in self.choices_.items()]

    def condition(self) -> Q:
        choice = self.choices_.get(self.value)
        if choice:
            return choice[1]
        return Q(**{self.column: self.value}) if self.column else Q(pk__in=())


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

    def condition(self) -> Q:
        time_range = self.ranges.get(self.value)
        return Q(created__gte=now() - time_range[1]) if time_range else Q()


class TimestampFilter(FormFilter):
    """A time in the viewer's zone; in links it has an offset."""

    kind = "datetime"
    lookup: ClassVar[str]

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any
    ) -> None:
        super().__init__(request, params, model, model_admin)
        self.title = f"{self.title} ({viewer_zone()})"
        self.at = _parse_timestamp(self.value)
        if self.at:
            self.value = f"{self.at:%Y-%m-%dT%H:%M}"

    def condition(self) -> Q:
        return Q(**{self.lookup: self.at}) if self.at else Q()


class SinceFilter(TimestampFilter):
    title = "from"
    parameter_name = "since"
    lookup = "created__gte"


class UntilFilter(TimestampFilter):
    title = "until"
    parameter_name = "until"
    lookup = "created__lt"


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
        **{value: (str(label), Q(outcome=value)) for value, label in Outcome.choices},
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
            "used tokens, no price known",
            UNPRICED & ~Q(upstream__in=list(SANDBOXES)),
        ),
        "known": ("known", Q(cost_nanousd__isnull=False)),
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


class TextFilter(FormFilter):
    kind = "text"

    def condition(self) -> Q:
        return Q(**{self.parameter_name: self.value})


class ModelFilter(TextFilter):
    title = "model"
    parameter_name = "model_requested"
    folded = False
    hint = "claude-sonnet-5"


class UserFilter(TextFilter):
    title = "user"
    parameter_name = "user"


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

    def select_choices(self) -> Iterable[tuple[str, str]]:
        teams = visible_teams(reader_of_user(self.request.user)).order_by("name")
        return [(name, name) for name in teams.values_list("name", flat=True)[:MAX_CHOICES]]

    def condition(self) -> Q:
        return Q(team=self.value)


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


def _parse_timestamp(text: str) -> datetime | None:
    """Parse an ISO 8601 time, in the viewer's zone unless it has an offset; None: it is invalid.

    The result is in the viewer's zone.
    """
    try:
        at = datetime.fromisoformat(text.replace(" ", "+") if text.count(" ") == 1 else text)
        at = at if at.tzinfo else at.replace(tzinfo=viewer_zone())
        return at.astimezone(viewer_zone()) if 1970 <= at.year <= 9990 else None
    except (ValueError, OverflowError):
        return None


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

LINKED_FIELDS = frozenset({"team"})
"""Fields without a filter in the form, which links of other admin pages use as exact lookups."""
