"""The viewer's time zone: chosen on a page, remembered in a cookie, in effect on all admin pages.

Templates and Django's forms convert times to the zone that the middleware activates. Reports by
whole days that are summed by UTC day say so.
"""

from datetime import date, datetime
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo, available_timezones

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin
from django.views.decorators.http import require_http_methods

from .pages import page, page_to_return_to

Response = TypeVar("Response", bound=HttpResponseBase)

COOKIE: Final = "bridge_time_zone"
PARAMETER: Final = "tz"
YEAR_S: Final = 365 * 86_400
KNOWN: Final = available_timezones()
CHOICES: Final = sorted(name for name in KNOWN if "/" in name or name == "UTC")
"""The zones of the list; those without a slash are old names."""


def zone_named(name: str) -> ZoneInfo | None:
    """Return the zone of this IANA name; None if there is none."""
    return ZoneInfo(name) if name in KNOWN else None


def viewer_zone() -> ZoneInfo:
    """Return the zone in which times are shown."""
    zone = timezone.get_current_timezone()
    return zone if isinstance(zone, ZoneInfo) else ZoneInfo("UTC")


def local_text(at: datetime, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Format an instant in the viewer's zone, with the name of the zone."""
    return f"{at.astimezone(viewer_zone()):{form}} {viewer_zone()}"


def midnight(day: date) -> datetime:
    """Return the start of a day in the viewer's zone."""
    return datetime(day.year, day.month, day.day, tzinfo=viewer_zone())


def parse_day(text: str) -> date | None:
    """Return the day in ISO 8601; None if there is none, or none of this time."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day if date(2000, 1, 1) < day < date(2200, 1, 1) else None


def context(request: HttpRequest) -> dict[str, Any]:
    """Return the name of the zone for the templates; a context processor."""
    return {"viewer_zone": str(viewer_zone())}


class TimeZoneMiddleware(MiddlewareMixin):
    """Activate the viewer's zone on admin pages, and remember a choice for a year.

    The parameter ``tz`` of the forms with a time range chooses the zone too.
    """

    def process_request(self, request: HttpRequest) -> None:
        if request.path.startswith(reverse("admin:index")):
            chosen = request.GET.get(PARAMETER) or request.COOKIES.get(COOKIE, "")
            timezone.activate(zone_named(chosen) or ZoneInfo("UTC"))

    def process_response(self, request: HttpRequest, response: Response) -> Response:
        if request.path.startswith(reverse("admin:index")):
            if zone_named(request.GET.get(PARAMETER, "")):
                remember(request, response, request.GET[PARAMETER])
            timezone.deactivate()
        return response


def remember(request: HttpRequest, response: HttpResponseBase, zone: str) -> None:
    """Store the zone in the viewer's browser, if it is another one than before."""
    if request.COOKIES.get(COOKIE) != zone:
        response.set_cookie(
            COOKIE,
            zone,
            max_age=YEAR_S,
            path=reverse("admin:index"),
            secure=request.is_secure(),
            httponly=True,
            samesite="Lax",
        )


class ZoneForm(forms.Form):
    zone = forms.ChoiceField(
        label="Time zone",
        choices=[(name, name) for name in CHOICES],
        help_text="Times are shown, and days begin, in this zone. This browser remembers it.",
        error_messages={"invalid_choice": "choose a zone of the list"},
        widget=forms.Select(attrs={"class": "mb-input"}),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def time_zone_view(request: HttpRequest) -> HttpResponse:
    """Let the viewer choose the zone, and return to the page that the viewer came from."""
    back = page_to_return_to(request)
    form = ZoneForm(request.POST or None, initial={"zone": str(viewer_zone())})
    if form.is_valid():
        zone = form.cleaned_data["zone"]
        messages.success(request, f"Times are shown in {zone}.")
        response = HttpResponseRedirect(back)
        remember(request, response, zone)
        return response
    return page(request, "people/form", "Time zone", form=form, button="Save", back_url=back)
