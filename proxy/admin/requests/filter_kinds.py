"""The kinds of fields of a filter form: a choice, a text, a time in the viewer's zone."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from proxy.admin.core.time_zone import viewer_zone

TimeBounds = tuple[datetime | None, datetime | None]


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

    def bounds(self) -> TimeBounds:
        return self.at, None


class UntilFilter(TimestampFilter):
    title = "until"
    parameter_name = "until"
    lookup = "created__lt"

    def bounds(self) -> TimeBounds:
        return None, self.at


class TextFilter(FormFilter):
    kind = "text"

    def condition(self) -> Q:
        return Q(**{self.parameter_name: self.value})


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
