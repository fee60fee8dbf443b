"""Teams and gateway keys. A key's secret is on exactly one page, once, and nowhere else."""

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import OuterRef, QuerySet, Subquery, Sum
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.views.decorators.debug import sensitive_variables

from proxy.audit_trail import note, rotated
from proxy.key_validity import ALWAYS, RELATED, Reason, ends_of
from proxy.models import ApiKey, DayWho, Scope, Team, rules
from proxy.visibility import reader_of_user, visible_keys, visible_teams
from proxy.write_permissions import REVOKE, ROTATE, may_write

from .base import ManagedAdmin, refuse_managed
from .figures import UNKNOWN, dollars
from .headers import harden
from .rule_fields import LimitsField, LinesField, OptionsField, tell_what_cannot_be_read

REMEDY: Final = "no secret: createkey --team {key.team.name} --name {key.name} gives it one"

if TYPE_CHECKING:  # the stubs' class is generic, Django's is not
    KeyModelForm = forms.ModelForm[ApiKey]
    TeamModelForm = forms.ModelForm[Team]
else:
    KeyModelForm = TeamModelForm = forms.ModelForm


class TeamForm(TeamModelForm):
    models_allowed = LinesField(
        list[rules.Model],
        label="Allowed models",
        help_text="Names or globs such as claude-*, one on each line; "
        "empty: every model that has a route.",
    )
    limits = LimitsField(required=False, help_text="Of all its keys together; empty: no limit.")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        tell_what_cannot_be_read(self)


@admin.register(Team)
class TeamAdmin(ManagedAdmin):
    form = TeamForm
    list_display = ("name", "store", "retention_days", "from_file")
    search_fields = ("name",)
    fields = ("name", "store", "retention_days", "models_allowed", "limits")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Team]:
        reader = reader_of_user(request.user)
        return visible_teams(reader) if reader.teams else super().get_queryset(request)


class ScopesField(forms.MultipleChoiceField):
    """Scopes are a JSON list in the row and checkboxes in the form."""

    widget = forms.CheckboxSelectMultiple

    def has_changed(self, initial: Any, data: Any) -> bool:
        return set(initial or ()) != set(data or ())


class KeyForm(KeyModelForm):
    scopes = ScopesField(
        choices=[
            (Scope.MESSAGES.value, "messages: may call models"),
            (Scope.REPORTS.value, "reports: may read the team's usage"),
            (Scope.ADMIN.value, "admin: may read everything"),
        ],
        initial=[Scope.MESSAGES.value],
    )
    models_allowed = LinesField(
        list[rules.Model],
        label="Allowed models",
        help_text="Names or globs such as claude-*, one on each line; "
        "empty: every model of the team.",
    )
    limits = LimitsField(required=False, help_text="Beside those of the team; empty: no other.")
    ip_allow = LinesField(
        list[rules.Network],
        label="Networks",
        help_text="Such as 10.0.0.0/8, one on each line; empty: from anywhere.",
    )
    options = OptionsField(required=False)

    class Meta:
        model = ApiKey
        fields = (
            "team",
            "name",
            "user",
            "scopes",
            "expires",
            "models_allowed",
            "limits",
            "ip_allow",
            "options",
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        tell_what_cannot_be_read(self)


class RotateForm(forms.Form):
    overlap_h = forms.TypedChoiceField(
        label="The old secret keeps working for",
        coerce=int,
        initial=24,
        choices=[(0, "not a moment longer"), (1, "an hour"), (24, "a day"), (168, "a week")],
    )


@admin.register(ApiKey)
class KeyAdmin(ManagedAdmin):
    form = KeyForm
    list_display = (
        "name",
        "team",
        "user",
        "shown_prefix",
        "may",
        "state",
        "last_used",
        "spent_lately",
        "from_file",
    )
    search_fields = ("name", "prefix", "team__name")
    readonly_fields = ("shown_prefix", "state", "created", "last_used")
    autocomplete_fields = ("user",)
    change_form_template = "admin/proxy/apikey/change_form.html"
    fieldsets = (
        (None, {"fields": ("team", "name", "user", "scopes", "expires")}),
        ("Narrower than the team", {"fields": ("models_allowed", "limits", "ip_allow", "options")}),
        ("State", {"fields": ("shown_prefix", "state", "created", "last_used")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiKey]:
        keys = visible_keys(reader_of_user(request.user)).select_related(*RELATED)
        keys = keys.order_by("team__name", "name")
        first = now().replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=29)
        days = DayWho.objects.filter(key_id=OuterRef("pk"), start__gte=first).order_by()
        sums = days.values("key_id").annotate(sum=Sum("cost_nanousd"), lacking=Sum("unpriced"))
        return keys.annotate(
            spent=Subquery(sums.values("sum")), lacking=Subquery(sums.values("lacking"))
        )

    def get_list_filter(self, request: HttpRequest) -> tuple[str, ...]:
        """Its choices are all teams: for whoever may see them all."""
        return ("team",) if reader_of_user(request.user).everything else ()

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fieldsets if obj else self.fieldsets[:2]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Keys are revoked, not deleted: a deleted key's requests would lose their owner."""
        return False

    @sensitive_variables("secret")
    def save_model(
        self, request: HttpRequest, obj: ApiKey, form: "forms.ModelForm[Any]", change: bool
    ) -> None:
        if change:
            obj.save(update_fields=form.changed_data or None)
            return
        chosen = {name: getattr(obj, name) for name in KeyForm.Meta.fields}
        key, secret = ApiKey.issue(chosen.pop("team"), chosen.pop("name"), **chosen)
        obj.__dict__.update(key.__dict__)
        request.new_secret = secret  # type: ignore[attr-defined]  # for response_add, then gone

    def response_add(
        self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None
    ) -> HttpResponse:
        return self.once(request, obj, request.new_secret)  # type: ignore[attr-defined]

    @sensitive_variables("secret")
    def once(self, request: HttpRequest, key: ApiKey, secret: str) -> HttpResponse:
        """The page with the secret: the answer to the POST itself, so that it is stored nowhere."""
        context = {
            **self.admin_site.each_context(request),
            "title": f"Key {key}",
            "key": key,
            "secret": secret,
            "base_url": request.build_absolute_uri("/").rstrip("/"),
        }
        return harden(TemplateResponse(request, "admin/proxy/apikey/once.html", context))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path("<int:key_id>/rotate/", view(self.rotate), name="proxy_apikey_rotate"),
            path("<int:key_id>/revoke/", view(self.revoke), name="proxy_apikey_revoke"),
        ]
        return own + super().get_urls()

    @sensitive_variables("secret")
    def rotate(self, request: HttpRequest, key_id: int) -> HttpResponse:
        """A new secret under the same name; the old one goes on under another name for a while."""
        key = self._visible(request, key_id)
        refuse_managed(key)
        may = may_write(request.user, ROTATE, ApiKey, key)
        if not (may and self.has_change_permission(request, key)):
            raise PermissionDenied
        if key.successor:
            raise Http404("an old secret ends; its successor is rotated")
        form = RotateForm(request.POST or None)
        if request.method != "POST" or not form.is_valid():
            return self._ask(request, key, "Rotate", form)
        with transaction.atomic():
            retiring, secret = key.rotate(timedelta(hours=form.cleaned_data["overlap_h"]))
            note(request.user, key, rotated(retiring))
            if retiring:
                note(request.user, retiring, f"Made by rotation of {key}.")
        return self.once(request, key, secret)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        key = context.get("original")
        if key is not None and (key.revoked is None or key.dropped):
            context["may_revoke"] = self.has_revoke_permission(request, key)
        return super().render_change_form(request, context, *args, **kwargs)

    def has_revoke_permission(self, request: HttpRequest, key: ApiKey) -> bool:
        """Ending a key hands nothing out, so it takes less than changing the key.

        Also of a key that bridge.toml declares: the file does not open it again.
        """
        may = may_write(request.user, REVOKE, ApiKey, key)
        return may and request.user.has_perm("proxy.change_apikey")

    def revoke(self, request: HttpRequest, key_id: int) -> HttpResponse:
        key = self._visible(request, key_id)
        if not self.has_revoke_permission(request, key):
            raise PermissionDenied
        if request.method != "POST":
            return self._ask(request, key, "Revoke", None)
        if key.revoke():
            note(request.user, key, "Revoked.")
            self.message_user(request, f"Key {key} is revoked; it stops working within seconds.")
        return HttpResponseRedirect(reverse("admin:proxy_apikey_changelist"))

    def _visible(self, request: HttpRequest, key_id: int) -> ApiKey:
        key = self.get_queryset(request).filter(pk=key_id).first()
        if key is None:
            raise Http404("no such key")
        return key

    def _ask(
        self, request: HttpRequest, key: ApiKey, verb: str, form: forms.Form | None
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": f"{verb} key {key}",
            "verb": verb,
            "key": key,
            "form": form,
        }
        return harden(TemplateResponse(request, "admin/proxy/apikey/ask.html", context))

    @admin.display(description="starts with", ordering="prefix")
    def shown_prefix(self, obj: ApiKey) -> SafeString | str:
        return format_html('<code class="mb-num">{}…</code>', obj.prefix) if obj.prefix else UNKNOWN

    @admin.display(description="may")
    def may(self, obj: ApiKey) -> str:
        return ", ".join(map(str, obj.scopes))

    @admin.display(description="30 days", ordering="spent")
    def spent_lately(self, obj: Any) -> SafeString | str:
        """Today and the 29 UTC days before it; nothing is a line, which is not $0."""
        if obj.spent is None:
            return UNKNOWN
        url = f"{reverse('admin:proxy_exchange_changelist')}?key_id={obj.pk}&within=30d"
        cost = dollars(None if obj.lacking and not obj.spent else obj.spent)
        return format_html('<a class="mb-link" href="{}">{}</a>', url, cost)

    @admin.display(description="state")
    def state(self, obj: ApiKey) -> str:
        """The reason why the gateway refuses it, with its day; or how long it is valid."""
        ends, instant = ends_of(obj), time.time()
        past = next((end for end in ends if end.at <= instant), None)
        if past is None:
            return f"valid until {_day(min(end.at for end in ends))}" if ends else "valid"
        if past.reason is Reason.EMPTY and obj.successor is None:
            return REMEDY.format(key=obj)
        return f"{past.reason} {_day(past.at)}".rstrip()


def _day(at: float) -> str:
    """Return the UTC day of an instant; "" for what has no beginning."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}" if at > ALWAYS else ""
