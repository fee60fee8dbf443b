"""Saved reports: list them, open their rows, and write them as lines of parameters."""

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from proxy.admin.core.json_column_field import AssignmentsField
from proxy.admin.core.model_admin import ChecksWrites, ModelForm
from proxy.models import SavedReport
from proxy.permissions.row_permissions import reader_of_user, visible_saved_reports
from proxy.reports.saved.reports import REPORTS, query_error

if TYPE_CHECKING:  # the theme's widgets have no types; their Django base classes do
    Select = forms.Select
else:
    from unfold.widgets import UnfoldAdminSelectWidget as Select

CHOICES = [(name, name) for name in REPORTS]


class SavedReportForm(ModelForm):
    author: Any = None
    """The signed-in user, to whom a report without a team belongs."""

    report = forms.ChoiceField(choices=CHOICES, widget=Select(choices=CHOICES))
    query = AssignmentsField(
        required=False,
        label="Parameters",
        help_text="One per line, as in the report's URL: month = last, tz = Europe/Berlin, "
        "group_by = team,model, bucket = 1d.",
    )

    class Meta:
        help_texts: ClassVar = {"team": "The team whose report it is. Empty: yours alone."}

    def clean(self) -> None:
        super().clean()
        given = self.cleaned_data
        if "report" in given and (why := query_error(given["report"], given.get("query") or {})):
            self.add_error("query", why)

    def _post_clean(self) -> None:
        """Set the owner before the row and the permissions are checked."""
        is_shared = bool(self.cleaned_data.get("team"))
        self.instance.user = None if is_shared else self.instance.user or self.author
        super()._post_clean()  # type: ignore[misc]  # of Django's form, without a type


@admin.register(SavedReport)
class SavedReportAdmin(ChecksWrites):
    empty_text = "A saved report keeps the parameters of a report under a name, as CSV and JSON."
    form = SavedReportForm
    list_display = ("name", "report", "owner", "parameters", "open_as")
    sortable_by = ()
    search_fields = ("name",)
    fields = ("name", "report", "query", "team")
    autocomplete_fields = ("team",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[SavedReport]:
        return visible_saved_reports(reader_of_user(request.user)).order_by("name")

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        form.author = request.user
        return form

    @admin.display(description="owner")
    def owner(self, obj: SavedReport) -> str:
        return f"team {obj.team}" if obj.team else str(obj.user)

    @admin.display(description="parameters")
    def parameters(self, obj: SavedReport) -> str:
        return urlencode(obj.query, doseq=True, safe=",/:*")

    @admin.display(description="open")
    def open_as(self, obj: SavedReport) -> SafeString:
        url = f"/api/v1/reports/{obj.name}/run/"
        return format_html(
            '<a class="mb-link" href="{0}?format=csv" download>CSV</a> · '
            '<a class="mb-link" href="{0}">JSON</a>',
            url,
        )
