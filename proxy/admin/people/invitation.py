"""Invite a colleague: a new user with a role, a team, a first key and a budget, in one form."""

import secrets
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods

from proxy.admin.core.pages import add_errors, page
from proxy.admin.setup.key_admin import secret_page
from proxy.models import ApiKey, Budget, Period, Team
from proxy.permissions.roles import MEMBER, ROLES, TEAM_GROUP
from proxy.permissions.usernames import TAKEN, is_taken
from proxy.permissions.write_permissions import ADD, choices, faults, may_invite

PASSWORD_BYTES: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Invited:
    """The rows of an invitation. ``password`` is empty if the user gets none."""

    user: Any
    key: ApiKey
    secret: str
    password: str


class InvitationForm(forms.Form):
    username = forms.CharField(
        label="User name",
        max_length=64,
        validators=[UnicodeUsernameValidator()],
    )
    email = forms.EmailField(label="Email", required=False, max_length=254)
    role = forms.ChoiceField(help_text="What the user may do in the admin.")
    team = forms.ModelChoiceField(queryset=Team.objects.none(), to_field_name="name")
    with_password = forms.BooleanField(
        label="Create a password, for sign-in without a provider", required=False, initial=True
    )
    key_name = forms.SlugField(
        label="Name of the first key", max_length=64, required=False, help_text="Empty: user name."
    )
    usd = forms.DecimalField(
        label="Budget of the key, $",
        min_value=Decimal(0),
        max_digits=14,
        decimal_places=6,
        required=False,
        help_text="Empty: no budget.",
    )
    period = forms.ChoiceField(choices=Period.choices, initial=Period.MONTH)

    def __init__(self, inviter: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.inviter = inviter
        teams = choices(inviter, Team.objects.all())
        self.fields["team"].queryset = teams  # type: ignore[attr-defined]
        self.fields["team"].initial = teams.get().name if teams.count() == 1 else None
        # Only a superuser grants roles that read the requests of other users.
        roles = ROLES if inviter.is_superuser else (MEMBER,)
        self.fields["role"].choices = [(name, name) for name in roles]  # type: ignore[attr-defined]
        self.fields["role"].initial = MEMBER

    def clean_username(self) -> str:
        name: str = self.cleaned_data["username"]
        if is_taken(name):
            raise forms.ValidationError(TAKEN)
        return name

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        name = cleaned.get("username", "")
        if not cleaned.get("key_name"):
            cleaned["key_name"] = "".join(c if c.isascii() and c.isalnum() else "-" for c in name)
        team = cleaned.get("team")
        if team and not may_invite(self.inviter, team):
            self.add_error("team", f"{team.name!r} is not one of your teams")
        return cleaned

    @sensitive_variables()
    def invite(self) -> Invited | None:
        """Create all rows, or none: then the errors are in the form, and None is returned."""
        try:
            with transaction.atomic():
                return self._create()
        except forms.ValidationError as error:
            add_errors(self, error, {"name": "key_name", "user": "username"})
            return None

    @sensitive_variables()
    def _create(self) -> Invited:
        given = self.cleaned_data
        password = secrets.token_urlsafe(PASSWORD_BYTES) if given["with_password"] else ""
        user = get_user_model().objects.create_user(
            given["username"], given["email"], password or None, is_staff=True
        )
        team: Team = given["team"]
        groups = [given["role"], f"{TEAM_GROUP}{team.name}"]
        user.groups.add(*(Group.objects.get_or_create(name=name)[0] for name in groups))
        fields = {"user": user, "scopes": ["messages"]}
        self._check(ApiKey(team=team, name=given["key_name"], **fields), "prefix", "digest")
        key, secret = ApiKey.issue(team, given["key_name"], **fields)
        if given["usd"] is not None:
            budget = Budget(key=key, usd=given["usd"], period=given["period"])
            self._check(budget)
            budget.save()
        return Invited(user=user, key=key, secret=secret, password=password)

    def _check(self, row: Any, *without: str) -> None:
        """Raise ValidationError if the row is invalid, or the inviter may not create it."""
        row.full_clean(exclude=without)
        errors: dict[str, list[str]] = {}
        for field, why in faults(self.inviter, ADD, type(row), row):
            errors.setdefault(field or NON_FIELD_ERRORS, []).append(why)
        if errors:
            raise forms.ValidationError(errors)


@sensitive_variables("invited")
@require_http_methods(["GET", "HEAD", "POST"])
def invitation_view(request: HttpRequest) -> HttpResponse:
    """Show the form (GET), or create the rows and show the secrets once (POST)."""
    if not may_invite(request.user):
        raise PermissionDenied
    form = InvitationForm(request.user, request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid() and (invited := form.invite()):
        return secret_page(
            request,
            invited.key,
            invited.secret,
            invited=str(invited.user),
            password=invited.password,
            back_url=reverse("admin:proxy_team_overview", args=[invited.key.team.pk]),
        )
    return page(
        request,
        "people/form",
        "Invite a colleague",
        form=form,
        button="Invite",
        back_url=reverse("admin:index"),
        explanation=[
            "This form creates the user, the key and its budget together.",
            "The next page shows the key and the password once.",
        ],
    )
