"""Budgets (cost limits of teams, keys and users) and the thresholds that they reached."""

from typing import TYPE_CHECKING, Any, ClassVar, Final

from django import forms
from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from proxy.admin.core.lookup_limits import CheckedChangeList
from proxy.admin.core.model_admin import Inline, ManagedAdmin, ModelForm
from proxy.admin.core.number_format import UNKNOWN, dollars
from proxy.admin.dashboard.budget_status import budget_statuses
from proxy.models import Budget, BudgetNotice
from proxy.money import nanousd_of
from proxy.permissions.row_permissions import Reader, reader_of_user, visible_budgets

if TYPE_CHECKING:  # the theme's widgets have no types; their Django base classes do
    Checkbox = forms.CheckboxInput
else:
    from unfold.widgets import UnfoldBooleanWidget as Checkbox

RECIPIENT_FIELDS = ("emails",)
"""The recipients of mails. Only superusers or bridge.toml may set them."""
SECOND_BUDGET: Final = (
    "{owner} has a budget of {limit} already, set in {place}; both will apply. "
    "Check the box to save this one too, or change the other one."
)


class BudgetForm(ModelForm):
    reader = Reader()
    """What the user may see: a form must not tell about other budgets."""

    second = forms.BooleanField(
        label="Both budgets apply", required=False, widget=forms.HiddenInput
    )
    """Shown only if the owner has another budget for the same period and models."""

    class Meta:
        help_texts: ClassVar = {"team": "Choose one of team, key and user."}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            self.initial["usd"] = f"{self.instance.usd.normalize():f}"

    def clean(self) -> dict[str, Any]:
        """Ask for confirmation if the owner has another budget for the same period and models."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        owner = {name: given.get(name) for name in ("team", "key", "user")}
        same = visible_budgets(self.reader).filter(
            **owner, period=given.get("period"), models_covered=given.get("models_covered") or []
        )
        same = same.exclude(pk=self.instance.pk)
        identity = {*owner, "period", "models_covered"}
        is_new_owner = self.instance.pk is None or identity & {*self.changed_data}
        other = same.first() if is_new_owner and any(owner.values()) else None
        if other is not None:
            self.fields["second"].widget = Checkbox()
            if not given.get("second"):
                place = "bridge.toml" if other.managed else "the admin"
                limit = f"{dollars(nanousd_of(other.usd))} a {other.period}"
                message = SECOND_BUDGET.format(
                    owner=other.owner.capitalize(), limit=limit, place=place
                )
                self.add_error("second", message)
        return given


class NoticeInline(Inline):
    model = BudgetNotice
    extra = 0
    can_delete = False
    fields = readonly_fields = ("start", "threshold", "created")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class BudgetChangeList(CheckedChangeList):
    """A change list that loads the status of all budgets of the page with one call."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(self.result_list)
        statuses = budget_statuses(rows)
        for row in rows:
            row.status = statuses.get(row.pk)
        self.result_list = rows


class WhenSpentFilter(admin.BooleanFieldListFilter):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = "rejecting requests when spent"


@admin.register(Budget)
class BudgetAdmin(ManagedAdmin):
    empty_text = "A budget limits the cost of a team, a key or a user in a day, a week or a month."
    form = BudgetForm
    list_display = ("owner", "limit", "status_display", "resets", "when_spent", "from_file")
    list_display_links = ("owner",)
    list_filter = ("period", ("hard", WhenSpentFilter))
    sortable_by = ()
    autocomplete_fields = ("team", "key", "user")
    inlines = (NoticeInline,)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "team",
                    "key",
                    "user",
                    "usd",
                    "period",
                    "models_covered",
                    "second",
                    "zone",
                    "hard",
                )
            },
        ),
        ("Mail at 80 % and 100 %", {"fields": RECIPIENT_FIELDS}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Budget]:
        budgets = visible_budgets(reader_of_user(request.user))
        return budgets.prefetch_related("key__retiring").order_by("pk")

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        form.reader = reader_of_user(request.user)
        return form

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BudgetChangeList

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fixed = tuple(super().get_readonly_fields(request, obj))
        return fixed if request.user.is_superuser else (*fixed, *RECIPIENT_FIELDS)

    @admin.display(description="owner")
    def owner(self, obj: Budget) -> str:
        return obj.owner

    @admin.display(description="limit")
    def limit(self, obj: Budget) -> str:
        return f"{dollars(nanousd_of(obj.usd))} a {obj.period}{obj.models_text}"

    @admin.display(description="usage")
    def status_display(self, obj: Any) -> SafeString | str:
        if getattr(obj, "status", None) is None:
            return UNKNOWN
        return render_to_string("admin/proxy/dashboard/budget_status.html", {"status": obj.status})

    @admin.display(description="resets")
    def resets(self, obj: Any) -> str:
        return obj.status.resets_text if getattr(obj, "status", None) else UNKNOWN

    @admin.display(description="when spent")
    def when_spent(self, obj: Budget) -> str:
        return "requests are rejected" if obj.hard else "warning only"
