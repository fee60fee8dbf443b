"""Teams and gateway keys. A key's secret is shown only once, in the response that creates it."""

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import OuterRef, QuerySet, Subquery, Sum
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.views.decorators.debug import sensitive_variables

from proxy.admin.core.lookup_limits import OwnUrls
from proxy.admin.core.model_admin import ManagedAdmin, refuse_managed
from proxy.admin.core.number_format import UNKNOWN, dollars
from proxy.admin.core.pages import page
from proxy.admin.core.time_zone import viewer_zone
from proxy.admin.live.views import stop_all_url
from proxy.conf import conf
from proxy.key_issuing import rotate_key
from proxy.models import ApiKey, Scope, Team, UsageByCallerDay
from proxy.models.setup.columns import shown
from proxy.permissions.deletions import deletable_keys, delete_unused_keys, deletion_obstacle
from proxy.permissions.key_validity import ALWAYS, RELATED, Reason, ends_of
from proxy.permissions.row_permissions import led_teams, reader_of_user, visible_keys
from proxy.permissions.write_permissions import REVOKE, has_write_permission, may_revoke, may_rotate

CREATE_KEY_HINT: Final = "no secret: createkey --team {key.team.name} --name {key.name} creates one"

if TYPE_CHECKING:  # generic only in django-stubs
    KeyModelForm = forms.ModelForm[ApiKey]
else:
    KeyModelForm = forms.ModelForm


@admin.register(Team)
class TeamAdmin(ManagedAdmin):
    list_display = ("name", "store", "retention_days", "overview", "from_file")
    search_fields = ("name",)
    fields = ("name", "store", "retention_days", "models_allowed", "limits", "member_keys")
    change_form_template = "admin/proxy/team/change_form.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Team]:
        return led_teams(request.user)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return what is deleted with the teams; the last part is what prevents it.

        Keys need no permission of their own: if they can be deleted, the team can.
        """
        *found, permissions, protected = super().get_deleted_objects(objs, request)
        permissions.discard(ApiKey._meta.verbose_name)  # noqa: SLF001 - documented by Django
        obstacles = [reason for team in objs if (reason := deletion_obstacle(team))]
        return *found, permissions, [*obstacles, *protected] if obstacles else []

    @transaction.atomic
    def delete_model(self, request: HttpRequest, obj: Team) -> None:
        delete_unused_keys(obj)
        super().delete_model(request, obj)

    @admin.display(description="overview")
    def overview(self, obj: Team) -> SafeString:
        url = reverse("admin:proxy_team_overview", args=[obj.pk])
        text = '<a class="mb-link" href="{}" aria-label="Overview of {}">Cost and people</a>'
        return format_html(text, url, obj)


class ScopesField(forms.MultipleChoiceField):
    """A form field that shows the JSON list of a key's scopes as checkboxes."""

    widget = forms.CheckboxSelectMultiple

    def has_changed(self, initial: Any, data: Any) -> bool:
        return set(initial or ()) != set(data or ())


class KeyForm(KeyModelForm):
    scopes = ScopesField(
        choices=[(scope, f"{scope}: {label}") for scope, label in Scope.choices],
        initial=[Scope.MESSAGES.value],
    )

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


class RotateForm(forms.Form):
    overlap_h = forms.TypedChoiceField(
        label="The old secret keeps working for",
        coerce=int,
        initial=24,
        choices=[(0, "no time"), (1, "1 hour"), (24, "1 day"), (168, "1 week")],
    )


@admin.register(ApiKey)
class KeyAdmin(ManagedAdmin):
    empty_text = "A client needs a key to send requests."
    form = KeyForm
    list_display = (
        "name",
        "team",
        "user",
        "prefix_display",
        "scopes_display",
        "state",
        "last_used",
        "spent_30_days",
        "from_file",
    )
    search_fields = ("name", "prefix", "team__name")
    readonly_fields = ("prefix_display", "state", "created", "last_used")
    autocomplete_fields = ("user",)
    change_form_template = "admin/proxy/apikey/change_form.html"
    fieldsets = (
        (None, {"fields": ("team", "name", "user", "scopes", "expires")}),
        ("Restrictions", {"fields": ("models_allowed", "limits", "ip_allow", "options")}),
        ("State", {"fields": ("prefix_display", "state", "created", "last_used")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiKey]:
        keys = visible_keys(reader_of_user(request.user)).select_related(*RELATED)
        keys = keys.order_by("team__name", "name")
        first = now().replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=29)
        days = UsageByCallerDay.objects.filter(key_id=OuterRef("pk"), start__gte=first).order_by()
        sums = days.values("key_id").annotate(sum=Sum("cost_nanousd"), unpriced=Sum("unpriced"))
        return keys.annotate(
            spent=Subquery(sums.values("sum")), unpriced=Subquery(sums.values("unpriced"))
        )

    def get_list_filter(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the team filter only for users who see all teams, because it lists all teams."""
        return ("team",) if reader_of_user(request.user).everything else ()

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fieldsets if obj else self.fieldsets[:2]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the key is revoked and was never used: its requests show its name."""
        is_deletable = obj is not None and deletable_keys().filter(pk=obj.pk).exists()
        return is_deletable and has_write_permission(request.user, REVOKE, ApiKey, obj)

    @sensitive_variables("secret")
    def save_model(
        self, request: HttpRequest, obj: ApiKey, form: "forms.ModelForm[Any]", change: bool
    ) -> None:
        if change:
            obj.save(update_fields=form.changed_data or None)
            return
        values = {name: getattr(obj, name) for name in KeyForm.Meta.fields}
        key, secret = ApiKey.issue(values.pop("team"), values.pop("name"), **values)
        obj.__dict__.update(key.__dict__)
        request.new_secret = secret  # type: ignore[attr-defined]  # read by response_add

    def response_add(
        self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None
    ) -> HttpResponse:
        return secret_page(request, obj, request.new_secret)  # type: ignore[attr-defined]

    def own_urls(self) -> OwnUrls:
        return (
            ("<int:key_id>/rotate/", self.rotate, "proxy_apikey_rotate"),
            ("<int:key_id>/revoke/", self.revoke, "proxy_apikey_revoke"),
        )

    @sensitive_variables("secret")
    def rotate(self, request: HttpRequest, key_id: int) -> HttpResponse:
        """Issue a new secret; the old one stays valid for a while, as a key of another name."""
        key = self._find_key(request, key_id)
        refuse_managed(key)
        if not may_rotate(request.user, key):
            raise PermissionDenied
        if key.successor:
            raise Http404("this is the old secret of a rotated key; rotate the key itself")
        form = RotateForm(request.POST or None)
        if request.method != "POST" or not form.is_valid():
            return self._confirmation_page(request, key, "Rotate", form)
        overlap = timedelta(hours=form.cleaned_data["overlap_h"])
        return secret_page(request, key, rotate_key(request.user, key, overlap))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        key = context.get("original")
        if key is not None:
            working = key.revoked is None or key.dropped
            context["may_revoke"] = working and self.has_revoke_permission(request, key)
            context["stop_all_url"] = stop_all_url(request.user, key)
            context["may_rotate"] = not (
                key.revoked or key.managed or key.successor
            ) and may_rotate(request.user, key)
        return super().render_change_form(request, context, *args, **kwargs)

    def has_revoke_permission(self, request: HttpRequest, key: ApiKey) -> bool:
        """Whether this user may revoke the key, which needs fewer permissions than changing it.

        A key that bridge.toml declares may be revoked too: applying the file again does not
        restore the key.
        """
        return may_revoke(request.user, key)

    def revoke(self, request: HttpRequest, key_id: int) -> HttpResponse:
        key = self._find_key(request, key_id)
        if not self.has_revoke_permission(request, key):
            raise PermissionDenied
        if request.method != "POST":
            return self._confirmation_page(request, key, "Revoke", None)
        if key.revoke():
            done = f"Key {key} is revoked; it stops working within seconds."
            stop = stop_all_url(request.user, key)
            if stop and not conf.end_revoked:  # else the gateway stops them itself
                link = '{} <a class="mb-link" href="{}">Stop its running requests</a>'
                done = format_html(link, done, stop)
            self.message_user(request, done)
        return HttpResponseRedirect(reverse("admin:proxy_apikey_changelist"))

    def _find_key(self, request: HttpRequest, key_id: int) -> ApiKey:
        key = self.get_queryset(request).filter(pk=key_id).first()
        if key is None:
            raise Http404("no such key")
        return key

    def _confirmation_page(
        self, request: HttpRequest, key: ApiKey, verb: str, form: forms.Form | None
    ) -> HttpResponse:
        title = f"{verb} key {key}"
        return page(request, "apikey/confirm", title, verb=verb, key=key, form=form)

    @admin.display(description="prefix", ordering="prefix")
    def prefix_display(self, obj: ApiKey) -> SafeString | str:
        return format_html('<code class="mb-num">{}…</code>', obj.prefix) if obj.prefix else UNKNOWN

    @admin.display(description="scopes")
    def scopes_display(self, obj: ApiKey) -> str:
        return shown(obj.scopes)

    @admin.display(description="Cost in 30 days", ordering="spent")
    def spent_30_days(self, obj: Any) -> SafeString | str:
        """Return the cost of the last 30 UTC days, including today; "—" without any requests."""
        if obj.spent is None:
            return UNKNOWN
        url = f"{reverse('admin:proxy_exchange_changelist')}?key_id={obj.pk}&within=30d"
        cost = dollars(None if obj.unpriced and not obj.spent else obj.spent)
        return format_html('<a class="mb-link" href="{}">{}</a>', url, cost)

    @admin.display(description="state")
    def state(self, obj: ApiKey) -> str:
        return key_state(obj)


def key_state(key: ApiKey) -> str:
    """Return why and since when the gateway rejects the key, or how long the key is valid.

    The related rows in ``key_validity.RELATED`` are read.
    """
    ends, instant = ends_of(key), time.time()
    expired = next((end for end in ends if end.at <= instant), None)
    if expired is None:
        return f"valid until {_day(min(end.at for end in ends))}" if ends else "valid"
    if expired.reason is Reason.EMPTY and key.successor is None:
        return CREATE_KEY_HINT.format(key=key)
    return f"{expired.reason} {_day(expired.at)}".rstrip()


@sensitive_variables("secret")
def secret_page(request: HttpRequest, key: ApiKey, secret: str, **more: str) -> HttpResponse:
    """Show the secret in the response to the POST, so that it is never stored in plain text.

    ``more``: further context of the template, such as the password of a new user.
    """
    values: dict[str, Any] = {
        "base_url": request.build_absolute_uri("/").rstrip("/"),
        "back_url": reverse("admin:proxy_apikey_changelist"),
        **more,
    }
    return page(request, "apikey/secret", f"Key {key}", key=key, secret=secret, **values)


def _day(at: float) -> str:
    """Return the day of a Unix time in the viewer's zone; "" for ``ALWAYS``."""
    return f"{datetime.fromtimestamp(at, viewer_zone()):%Y-%m-%d}" if at > ALWAYS else ""
