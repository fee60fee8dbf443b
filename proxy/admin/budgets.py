"""Budgets: ceilings of teams, keys and users, and whom they told."""

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from proxy.models import Budget, BudgetNotice
from proxy.visibility import reader_of_user, visible_budgets

from .base import Inline, ManagedAdmin, ModelForm
from .figures import NANO, UNKNOWN, dollars
from .lookups import CheckedList
from .standings import states_of

WHOM_TO_TELL = ("webhook", "webhook_secret", "emails")
"""Addresses that this server calls: superusers set them, or bridge.toml."""


class BudgetForm(ModelForm):
    class Meta:
        labels: ClassVar = {"usd": "Limit, $", "zone": "Time zone", "hard": "Refuse when spent"}
        help_texts: ClassVar = {
            "team": "One of team, key and user.",
            "zone": "IANA name, such as Europe/Berlin: a period begins at its midnight.",
            "hard": "Off: a warning is given, and requests go on.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            self.initial["usd"] = f"{self.instance.usd.normalize():f}"


class NoticeInline(Inline):
    model = BudgetNotice
    extra = 0
    can_delete = False
    fields = readonly_fields = ("start", "threshold", "created", "sent", "tries", "error")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class StandingChangeList(CheckedList):
    """Asks how the budgets of the page stand, all at once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(self.result_list)
        states = states_of(rows)
        for row in rows:
            row.standing = states.get(row.pk)
        self.result_list = rows


@admin.register(Budget)
class BudgetAdmin(ManagedAdmin):
    form = BudgetForm
    list_display = ("owner", "limit", "standing", "resets", "when_spent", "from_file")
    list_display_links = ("owner",)
    list_filter = ("period", "hard")
    sortable_by = ()
    autocomplete_fields = ("team", "key", "user")
    inlines = (NoticeInline,)
    fieldsets = (
        (None, {"fields": ("team", "key", "user", "usd", "period", "zone", "hard")}),
        ("Who is told at 80 % and at 100 %", {"fields": WHOM_TO_TELL}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Budget]:
        budgets = visible_budgets(reader_of_user(request.user))
        return budgets.prefetch_related("key__retiring").order_by("pk")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return StandingChangeList

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fixed = tuple(super().get_readonly_fields(request, obj))
        return fixed if request.user.is_superuser else (*fixed, *WHOM_TO_TELL)

    @admin.display(description="whose")
    def owner(self, obj: Budget) -> str:
        return obj.owner

    @admin.display(description="limit")
    def limit(self, obj: Budget) -> str:
        return f"{dollars(int(obj.usd * NANO))} a {obj.period}"

    @admin.display(description="how it stands")
    def standing(self, obj: Any) -> SafeString | str:
        if getattr(obj, "standing", None) is None:
            return UNKNOWN
        return render_to_string("admin/proxy/budget/standing.html", {"state": obj.standing})

    @admin.display(description="begins anew")
    def resets(self, obj: Any) -> str:
        return obj.standing.resets_text if getattr(obj, "standing", None) else UNKNOWN

    @admin.display(description="when it is spent")
    def when_spent(self, obj: Budget) -> str:
        return "requests are refused" if obj.hard else "a warning is given"
