"""Filters of the lists of the ledger: one form, sent by GET, so that each filtered list has a URL.

No filter reads its choices from the ledger. A value in the URL that is not among the choices, such
as a new stop reason, is applied too, and the form shows it unchanged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.timezone import now

from proxy.admin.core.pages import team_names
from proxy.admin.core.time_zone import viewer_zone
from proxy.models import DialectName, Outcome, State, Upstream
from proxy.models.ledger import FAILED, UNPRICED
from proxy.models.ledger_names import person_ids, team_ids
from proxy.models.setup.upstreams import SANDBOXES
from proxy.permissions.row_permissions import reader_of_user, visible_keys

MAX_CHOICES: Final = 300
MAX_NUMBER: Final = 10**9

TimeBounds = tuple[datetime | None, datetime | None]


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
        """Return what the rows must match; the default compares the column of the parameter."""
        return Q(**{self.parameter_name: self.value})

    def bounds(self) -> TimeBounds:
        """Return between which times the matching rows are; None: the value sets no bound."""
        return None, None

    def select_choices(self) -> Iterable[tuple[str, str]]:
        """Return (value, label) of each choice, if ``kind`` is select."""
        return ()

    @property
    def has_choices(self) -> bool:
        """Whether the form shows the field: a select without choices is hidden."""
        return self.kind != "select" or bool(self.options)

    @cached_property
    def options(self) -> list[tuple[str, str]]:
        """The (value, label) of each choice of a select, with the current value."""
        choices = list(self.select_choices())
        if self.value and self.value not in dict(choices):
            choices.append((self.value, self.value))
        return choices

    @property
    def value_label(self) -> str:
        """The label of the filter's current value."""
        return dict(self.options)[self.value] if self.kind == "select" else self.value


def filter_field(
    title: str, parameter: str, condition: Callable[[str], Q] | None = None, **attributes: Any
) -> type[FormFilter]:
    """Return a field of the form; ``condition`` returns what rows match a value.

    Without a condition, the column of the parameter's name has the value.
    """
    if condition is not None:
        attributes["condition"] = lambda self: condition(self.value)
    values = {"title": title, "parameter_name": parameter, "kind": "text", **attributes}
    return type(f"{parameter.title()}Filter", (FormFilter,), values)


def choice_field(
    title: str,
    parameter: str,
    choices: Mapping[str, tuple[str, Q]],
    *,
    column: str = "",
    folded: bool = True,
) -> type[FormFilter]:
    """Return a select with fixed choices: value -> (label, condition).

    ``column`` is compared with a value that is not among the choices. If it is empty, such a value
    matches no row.
    """

    def condition(value: str) -> Q:
        if value in choices:
            return choices[value][1]
        return Q(**{column: value}) if column else Q(pk__in=())

    labels = [(value, label) for value, (label, _) in choices.items()]
    return filter_field(
        title,
        parameter,
        condition,
        kind="select",
        folded=folded,
        select_choices=lambda _: labels,
    )


class TimeFilter(FormFilter):
    """A field that limits the time of the rows: ``bounds`` says to what."""

    def condition(self) -> Q:
        since, until = self.bounds()
        bounds = {"created__gte": since, "created__lt": until}
        return Q(**{lookup: at for lookup, at in bounds.items() if at})


class TimestampFilter(TimeFilter):
    """An ISO 8601 time, in the viewer's zone unless it has an offset, as in links."""

    kind = "datetime"

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any
    ) -> None:
        super().__init__(request, params, model, model_admin)
        self.title = f"{self.title} ({viewer_zone()})"
        self.at: datetime | None = None
        text = self.value.replace(" ", "+") if self.value.count(" ") == 1 else self.value
        try:
            at = datetime.fromisoformat(text)
            at = at if at.tzinfo else at.replace(tzinfo=viewer_zone())
            self.at = at.astimezone(viewer_zone()) if 1970 <= at.year <= 9990 else None
        except (ValueError, OverflowError):
            return
        if self.at:
            self.value = f"{self.at:%Y-%m-%dT%H:%M}"


class SinceFilter(TimestampFilter):
    title = "from"
    parameter_name = "since"

    def bounds(self) -> TimeBounds:
        return self.at, None


class UntilFilter(TimestampFilter):
    title = "until"
    parameter_name = "until"

    def bounds(self) -> TimeBounds:
        return None, self.at


class WithinFilter(TimeFilter):
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


def _parse_number(text: str) -> Decimal | None:
    """Return the number if it is from 0 to ``MAX_NUMBER``, else None."""
    try:
        number = Decimal(text.replace(",", "."))
    except InvalidOperation:
        return None
    return number if number.is_finite() and 0 <= number <= MAX_NUMBER else None


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
        return [(name, name) for name in team_names(reader_of_user(self.request.user))]

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


def _status(value: str) -> Q:
    first, rest = value[:1], value[1:].lower()
    if first in "12345" and rest == "xx":
        return Q(status__gte=int(first) * 100, status__lt=int(first) * 100 + 100)
    number = _parse_number(value)
    return Q(pk__in=()) if number is None else Q(status=int(number))


def _at_least(column: str, factor: int) -> Callable[[str], Q]:
    """Return a condition: the column, which has another unit, is at least the given number."""

    def condition(value: str) -> Q:
        number = _parse_number(value)
        return Q() if number is None else Q(**{f"{column}__gte": number * factor})

    return condition


FILTERS: Final[tuple[type[FormFilter], ...]] = (
    WithinFilter,
    TeamFilter,
    KeyFilter,
    filter_field("model", "model_requested", hint="claude-sonnet-5", folded=False),
    choice_field(
        "outcome",
        "result",
        {
            "running": ("Running", Q(state=State.OPEN)),
            "failed": ("Any failure", FAILED),
            "closed": ("Finished", Q(state=State.CLOSED)),
            **{
                value: (str(label).capitalize(), Q(outcome=value))
                for value, label in Outcome.choices
            },
        },
        folded=False,
    ),
    choice_field(
        "stop reason",
        "stopped",
        {
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
            "none": (
                "none (the response did not end normally)",
                Q(stop_reason="", state=State.CLOSED),
            ),
        },
        column="stop_reason",
        folded=False,
    ),
    SinceFilter,
    UntilFilter,
    filter_field("user", "user", lambda value: Q(user__in=person_ids(value))),
    UpstreamFilter,
    filter_field("status", "status", _status, hint="529 or 5xx"),
    choice_field(
        "price",
        "cost",
        {
            "none": (  # this condition must match the same requests as queries.unpriced_in
                "no price, although it used tokens",
                UNPRICED & ~Q(upstream__in=list(SANDBOXES)),
            ),
            "known": ("has a price", Q(cost_nanousd__isnull=False)),
        },
    ),
    filter_field(
        "cost at least ($)",
        "cost_from",
        _at_least("cost_nanousd", 10**9),
        kind="number",
        hint="0.50",
    ),
    filter_field(
        "duration at least (s)", "took_from", _at_least("total_ms", 1000), kind="number", hint="30"
    ),
    choice_field(
        "contains",
        "holds",
        {
            "tools": ("tool calls", Q(tool_calls__gt=0)),
            "thinking": ("thinking", Q(has_thinking=True)),
            "images": ("images", Q(has_images=True)),
            "notes": ("translation notes", ~Q(notes=[])),
            "retries": ("more than one attempt", Q(attempts__1__isnull=False)),
            "stream": ("a stream", Q(stream=True)),
            "whole": ("a response without stream", Q(stream=False)),
        },
    ),
    NoteFilter,
    choice_field(
        "dialect",
        "spoke",
        {value: (str(label), Q(dialect=value)) for value, label in DialectName.choices},
    ),
    filter_field("client", "client_name", hint="claude-cli"),
    filter_field("client version", "client_version", hint="2.1.329"),
    filter_field("session", "session_id"),
)
