"""Filters of the request list: one form, sent by GET, so that every view of the list is a link.

None asks the big table for its choices. A value that a link brought and no choice has (a stop
reason of next year) filters all the same and is shown as it is.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.timezone import now

from proxy.models import DialectName, Outcome, State, Upstream
from proxy.sandbox import UPSTREAMS as SANDBOXES
from proxy.visibility import reader_of_user, visible_keys, visible_teams

MOST_CHOICES: Final = 300
MOST_NUMBER: Final = 10**9


@dataclass(frozen=True, slots=True)
class Option:
    value: str
    label: str
    chosen: bool


class FormFilter(admin.ListFilter):
    """One field of the form. ``kind`` names its widget: select, text, number or datetime."""

    parameter_name: ClassVar[str]
    kind: ClassVar[str] = "select"
    hint: ClassVar[str] = ""
    folded: ClassVar[bool] = True
    """Under "More filters"."""

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
        """None for the theme's own list of filters: the form draws them."""
        return iter(())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return self.narrow(queryset) if self.value else queryset

    def narrow(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(self.condition())

    def condition(self) -> Q:
        raise NotImplementedError

    def named(self) -> Iterable[tuple[str, str]]:
        """Choices of a select: value and label."""
        return ()

    @property
    def is_of_use(self) -> bool:
        """A choice without choices is not shown."""
        return self.kind != "select" or bool(self.options)

    @cached_property
    def options(self) -> list[Option]:
        named = list(self.named())
        if self.value and self.value not in dict(named):
            named.append((self.value, self.value))
        return [Option(value, label, value == self.value) for value, label in named]

    @property
    def shown(self) -> str:
        """The chosen value, in words."""
        if self.kind != "select":
            return self.value
        return next((one.label for one in self.options if one.chosen), self.value)


class FixedFilter(FormFilter):
    """Choices and conditions in one table: value -> (label, condition)."""

    choices_: ClassVar[Mapping[str, tuple[str, Q]]]
    column: ClassVar[str] = ""
    """What a value outside the table is compared with; empty: it finds nothing."""

    def named(self) -> Iterable[tuple[str, str]]:
        return [(value, label) for value, (label, _) in self.choices_.items()]

    def condition(self) -> Q:
        chosen = self.choices_.get(self.value)
        if chosen:
            return chosen[1]
        return Q(**{self.column: self.value}) if self.column else Q(pk__in=())


class WithinFilter(FormFilter):
    title = "within"
    parameter_name = "within"
    folded = False
    spans: ClassVar[Mapping[str, tuple[str, timedelta]]] = {
        "1h": ("the last hour", timedelta(hours=1)),
        "24h": ("24 hours", timedelta(hours=24)),
        "7d": ("7 days", timedelta(days=7)),
        "30d": ("30 days", timedelta(days=30)),
    }

    def named(self) -> Iterable[tuple[str, str]]:
        return [(value, label) for value, (label, _) in self.spans.items()]

    def condition(self) -> Q:
        span = self.spans.get(self.value)
        return Q(created__gte=now() - span[1]) if span else Q()


class MomentFilter(FormFilter):
    kind = "datetime"
    lookup: ClassVar[str]

    def condition(self) -> Q:
        at = _moment(self.value)
        return Q(**{self.lookup: at}) if at else Q()


class SinceFilter(MomentFilter):
    title = "from (UTC)"
    parameter_name = "since"
    lookup = "created__gte"


class UntilFilter(MomentFilter):
    title = "until (UTC)"
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
        number = _number(self.value)
        return Q(pk__in=()) if number is None else Q(status=int(number))


class StopReasonFilter(FixedFilter):
    title = "stop reason"
    parameter_name = "stopped"
    folded = False
    column = "stop_reason"
    choices_ = {
        **{
            reason: (reason.replace("_", " "), Q(stop_reason=reason))
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
        "none": ("none (it did not end by itself)", Q(stop_reason="", state=State.CLOSED)),
    }


class PricedFilter(FixedFilter):
    title = "price"
    parameter_name = "cost"
    choices_ = {
        "none": (  # as books.unpriced_in counts them
            "used tokens, no price known",
            Q(state=State.CLOSED, cost_nanousd=None)
            & (Q(input_tokens__isnull=False) | Q(output_tokens__isnull=False))
            & ~Q(upstream__in=list(SANDBOXES)),
        ),
        "known": ("known", Q(cost_nanousd__isnull=False)),
    }


class CostFilter(FormFilter):
    title = "cost at least ($)"
    parameter_name = "cost_from"
    kind = "number"
    hint = "0.50"

    def condition(self) -> Q:
        number = _number(self.value)
        return Q() if number is None else Q(cost_nanousd__gte=int(number.scaleb(9)))


class DurationFilter(FormFilter):
    title = "took at least (s)"
    parameter_name = "took_from"
    kind = "number"
    hint = "30"

    def condition(self) -> Q:
        number = _number(self.value)
        return Q() if number is None else Q(total_ms__gte=float(number) * 1000)


class HoldsFilter(FixedFilter):
    title = "contains"
    parameter_name = "holds"
    choices_ = {
        "tools": ("tool calls", Q(tool_calls__gt=0)),
        "thinking": ("thinking", Q(has_thinking=True)),
        "images": ("images", Q(has_images=True)),
        "notes": ("translation notes", ~Q(notes=[])),
        "retries": ("more than one attempt", Q(attempts__1__isnull=False)),
        "stream": ("a stream", Q(stream=True)),
        "whole": ("a whole answer", Q(stream=False)),
    }


class NoteFilter(FormFilter):
    """By the fate that a note tells: found as the JSON's text, which every database can search."""

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

    def named(self) -> Iterable[tuple[str, str]]:
        return [(fate, fate) for fate in self.fates]

    def narrow(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        if self.value not in self.fates:
            return rows.none()
        noted = rows.exclude(notes=[]).alias(notes_text=Cast("notes", TextField()))
        found: QuerySet[Any] = noted.filter(notes_text__contains=f'"{self.value}"')
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


class SessionFilter(TextFilter):
    title = "session"
    parameter_name = "session_id"


class TeamFilter(FormFilter):
    title = "team"
    parameter_name = "of_team"
    folded = False

    def named(self) -> Iterable[tuple[str, str]]:
        teams = visible_teams(reader_of_user(self.request.user)).order_by("name")
        return [(name, name) for name in teams.values_list("name", flat=True)[:MOST_CHOICES]]

    def condition(self) -> Q:
        return Q(team=self.value)


class UpstreamFilter(FormFilter):
    title = "upstream"
    parameter_name = "via"

    def named(self) -> Iterable[tuple[str, str]]:
        """For whoever may look at the upstreams; others see only the one that a link named."""
        if not self.request.user.has_perm("proxy.view_upstream"):
            return []
        found = Upstream.objects.order_by("name").values_list("name", flat=True)
        return [(name, name) for name in found[:MOST_CHOICES]]

    def condition(self) -> Q:
        return Q(upstream=self.value)


class KeyFilter(FormFilter):
    title = "key"
    parameter_name = "key_id"
    folded = False

    def named(self) -> Iterable[tuple[str, str]]:
        keys = visible_keys(reader_of_user(self.request.user)).order_by("team__name", "name")
        found = keys.values_list("pk", "team__name", "name")[:MOST_CHOICES]
        return [(str(pk), f"{team}/{name}") for pk, team, name in found]

    def condition(self) -> Q:
        number = _number(self.value)
        return Q(pk__in=()) if number is None else Q(key_id=int(number))


def _number(text: str) -> Decimal | None:
    """A number of a form, neither negative nor absurd; None: none was given."""
    try:
        number = Decimal(text.replace(",", "."))
    except InvalidOperation:
        return None
    return number if number.is_finite() and 0 <= number <= MOST_NUMBER else None


def _moment(text: str) -> datetime | None:
    """ISO 8601, in UTC where it names no zone; None: no time at all."""
    try:
        at = datetime.fromisoformat(text.replace(" ", "+") if text.count(" ") == 1 else text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return at.astimezone(UTC) if 1970 <= at.year <= 9990 else None
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
    HoldsFilter,
    NoteFilter,
    DialectFilter,
    SessionFilter,
)

LINKED_FIELDS = frozenset({"team"})
"""Fields that links in our pages filter by, spelled as Django's own exact lookups."""
