"""The form with which members make gateway keys for themselves, within the limits of their team."""

from datetime import timedelta
from typing import Any, Final

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.timezone import now
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods

from proxy.admin.core.pages import add_errors, page
from proxy.admin.core.typed_fields import LinesField
from proxy.admin.setup.key_admin import secret_page
from proxy.key_issuing import issue_own_key
from proxy.models import ApiKey, Scope, Team
from proxy.models.setup.columns import Model
from proxy.permissions.member_keys import (
    member_limits,
    working_keys,
)
from proxy.permissions.write_permissions import own_key_teams

MAX_DAYS: Final = 36_500
SCOPE_LABELS: Final = {
    Scope.MESSAGES.value: "messages: may call models",
    Scope.REPORTS.value: "reports: may read the team's usage",
}


class OwnKeyForm(forms.Form):
    team = forms.ModelChoiceField(queryset=Team.objects.none(), to_field_name="name")
    name = forms.SlugField(max_length=64, help_text="For example the computer or the tool.")
    days = forms.IntegerField(
        label="Valid for, in days", min_value=1, max_value=MAX_DAYS, required=False
    )
    scopes = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple)
    models = LinesField(
        list[Model],
        label="Allowed models",
        help_text="Names or globs, one per line; empty: all that the team allows.",
    )

    def __init__(self, user: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user, self.teams = user, own_key_teams(user)
        limits = list(map(member_limits, self.teams))
        scopes = {scope for one in limits for scope in one.allowed_scopes}
        days = [one.days for one in limits if one.days]
        team, scope, fields = self.fields["team"], self.fields["scopes"], self.fields
        team.queryset = Team.objects.filter(pk__in=[one.pk for one in self.teams])  # type: ignore[attr-defined]
        team.initial = self.teams[0].name if self.teams else None
        scope.choices = [(name, label) for name, label in SCOPE_LABELS.items() if name in scopes]  # type: ignore[attr-defined]
        scope.initial = [next((name for name in SCOPE_LABELS if name in scopes), "")]
        fields["days"].initial = min(days, default=None)
        fields["days"].required = len(days) == len(self.teams)
        fields["days"].help_text = "" if fields["days"].required else "Empty: no end."

    @property
    def limits(self) -> list[str]:
        """Return a sentence about the limits of each team in which the user may make keys."""
        return [_limits_text(team, working_keys(team, self.user)) for team in self.teams]

    @sensitive_variables("secret")
    def issue(self) -> tuple[ApiKey, str] | None:
        """Create the key; return it with its secret, or None after adding errors to the form."""
        given, days = self.cleaned_data, self.cleaned_data["days"]
        try:
            return issue_own_key(
                self.user,
                given["team"],
                given["name"],
                # A minute less, so that the longest lifetime is still within the limit.
                expires=now() + timedelta(days=days, minutes=-1) if days else None,
                scopes=given["scopes"],
                models=given["models"],
            )
        except forms.ValidationError as error:
            add_errors(self, error, {"expires": "days", "models_allowed": "models"})
            return None


def _limits_text(team: Team, used: int) -> str:
    limits = member_limits(team)
    until = f", each valid for up to {limits.days} days" if limits.days else ""
    named = f", for {', '.join(limits.models)}" if limits.models else ""
    return f"{team}: {used} of {limits.count} keys in use{until}{named}."


@require_http_methods(["GET", "HEAD", "POST"])
def own_key_view(request: HttpRequest) -> HttpResponse:
    """Show the form (GET), or create the key and show its secret once (POST)."""
    form = OwnKeyForm(request.user, request.POST if request.method == "POST" else None)
    if not form.teams:
        raise PermissionDenied("None of your teams lets its members create keys")
    if request.method == "POST" and form.is_valid() and (issued := form.issue()):
        key, secret = issued
        return secret_page(request, key, secret, back_url=reverse("admin:proxy_me"))
    return page(
        request,
        "people/form",
        "New key for yourself",
        form=form,
        button="Create the key",
        back_url=reverse("admin:proxy_me"),
        explanation=form.limits,
    )
