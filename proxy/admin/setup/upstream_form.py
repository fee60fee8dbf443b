"""The form of an upstream. It accepts a new secret and never shows a secret, stored or typed."""

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from django import forms
from django.core.exceptions import ValidationError
from django.views.decorators.debug import sensitive_variables

from proxy.admin.core.json_column_field import (
    AssignmentsField,
    ModelCapabilitiesField,
    StorableJson,
    raw_text,
)
from proxy.admin.core.time_zone import local_text
from proxy.admin.core.typed_fields import (
    MultiInput,
    Part,
    SelectInput,
    StructField,
    TextInput,
    column_of,
    typed_formfield,
)
from proxy.encryption.upstream_secrets import encrypt_secret
from proxy.live.credential_states import STATES
from proxy.models import Upstream
from proxy.models.setup.columns import SEALED, TypedJSON
from translator.capabilities import PROFILES, Profile

from . import pending_secret

if TYPE_CHECKING:  # generic only in django-stubs
    UpstreamModelForm = forms.ModelForm[Upstream]
    Password = forms.PasswordInput
else:
    from unfold.widgets import UnfoldAdminPasswordWidget as Password

    UpstreamModelForm = forms.ModelForm

UNCHANGED: Final = {SEALED: "unchanged"}
"""Placeholder that the form has instead of a secret stored encrypted in the database."""
PLACES: Final = (
    ("", "not set"),
    ("env", "in an environment variable"),
    ("file", "in a file"),
)
STORED_PLACE: Final = (SEALED, "encrypted in the database")
TYPED_HELP: Final = "Stored encrypted, for this base URL only; never shown again. Empty: no change."
KEPT_HELP: Final = (
    "The secret that you typed is kept encrypted on the server for ten minutes and used when you "
    "save. Enter another one to replace it."
)


def secret_location(upstream: Upstream) -> str:
    """Return where the upstream's secret is stored, as text without the secret."""
    if upstream.has_encrypted_secret:
        return "stored, encrypted for this base URL"
    try:
        upstream.check_secret()
    except ValidationError:
        return "invalid"
    kind = upstream.credentials.get("kind") if isinstance(upstream.credentials, dict) else None
    if kind:
        return f"fetched, {kind}"
    return ", ".join(f"{kind} {place}" for kind, place in upstream.secret.items()) or "none"


def describe_credential(upstream: Upstream) -> str:
    """Return origin, expiry and last failure of the upstream's credential, without the secret."""
    state = STATES.get(upstream.name)
    if state is None:
        return "not in use, or not fetched"
    parts = [state.origin or "none fetched yet"]
    if state.expires_at is not None:
        at = dt.datetime.fromtimestamp(state.expires_at, dt.UTC)
        parts.append(f"expires at {local_text(at)}")
    if state.fault:
        parts.append(f"the last refresh failed: {state.fault}")
    return "; ".join(parts)


class PlaceParts(MultiInput):
    def __init__(self) -> None:
        inputs = (SelectInput(choices=PLACES), TextInput(attrs={"autocomplete": "off"}))
        labels = ("The secret is", "Name of the variable, or path")
        super().__init__("Secret", ("place", "name"), labels, inputs)

    def decompress(self, value: Any) -> list[Any]:
        if not value:
            return ["", ""]
        if not isinstance(value, dict) or len(value) != 1:
            return ["", raw_text(value)]
        ((place, name),) = value.items()
        return [place, "" if place == SEALED else raw_text(name)]


class SecretPlaceField(forms.MultiValueField):
    """Where a secret is: ``{"env": "NAME"}``, ``{"file": "/path"}`` or nothing.

    With ``offer_stored`` there is also the choice of the encrypted secret in the database.
    """

    def __init__(self, **kwargs: Any) -> None:
        parts = (
            forms.ChoiceField(choices=PLACES, required=False),
            forms.CharField(max_length=500, required=False),
        )
        kwargs = {"required": False, **kwargs}
        super().__init__(parts, widget=PlaceParts(), require_all_fields=False, **kwargs)

    def offer_stored(self) -> None:
        choices = [*PLACES, STORED_PLACE]
        self.fields[0].choices = choices  # type: ignore[attr-defined]
        self.widget.widgets[0].choices = choices

    def compress(self, data_list: Sequence[str]) -> dict[str, str]:
        place, name = data_list or ("", "")
        if not place and name.startswith("{"):  # the model names what is wrong with the object
            found: dict[str, str] = StorableJson().clean(name)
            return found
        if place == SEALED and not name:
            return dict(UNCHANGED)
        if bool(place) != bool(name):
            raise forms.ValidationError("choose where the secret is, and name the variable or file")
        return {place: name} if place else {}


class CapabilitiesField(StructField):
    """One input for each capability of ``translator.capabilities.Profile``.

    An object with an unknown capability is shown as JSON in the first input, and read from there,
    so that the error message of the model names it.
    """

    def __init__(self, **kwargs: Any) -> None:
        types = get_type_hints(Profile)
        parts = [
            Part(name, kind, name.replace("_", " ").capitalize().replace("json", "JSON"), {"ge": 0})
            for name, kind in types.items()
            if name != "name"
        ]
        super().__init__(dict, parts, **kwargs)

    def compress(self, data_list: Sequence[Any]) -> Any:
        if data_list and str(data_list[0]).startswith(("{", "[")):
            return StorableJson().clean(data_list[0])
        return super().compress(data_list)


class UpstreamForm(UpstreamModelForm):
    session: Any = None
    """The user's session, in which a typed secret survives the error of another field."""

    secret = typed_formfield(
        column_of(Upstream, "secret"),
        SecretPlaceField,
        label="API key of the upstream",
        help_text="To store the key itself, enter it below instead.",
    )
    new_secret = forms.CharField(
        label="New secret",
        required=False,
        max_length=4_096,
        widget=Password(render_value=False, attrs={"autocomplete": "new-password"}),
        help_text=TYPED_HELP,
    )
    pending_secret = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)
    profile = forms.ChoiceField(
        help_text=column_of(Upstream, "profile").help_text, initial="generic"
    )
    capabilities = typed_formfield(column_of(Upstream, "capabilities"), CapabilitiesField)
    model_capabilities = typed_formfield(
        column_of(Upstream, "model_capabilities"), ModelCapabilitiesField
    )
    connection = typed_formfield(column_of(Upstream, "connection"), AssignmentsField)

    class Meta:
        model = Upstream
        fields = "__all__"
        formfield_callback = staticmethod(
            lambda column, **options: (
                typed_formfield(column)
                if isinstance(column, TypedJSON)
                else column.formfield(**options)
            )
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "profile" in self.fields:  # it is not in the form of a user who may only view
            self._offer_profiles()
        if self.instance.pk and self.instance.has_encrypted_secret and "secret" in self.fields:
            self.initial["secret"] = UNCHANGED
            self.fields["secret"].offer_stored()  # type: ignore[attr-defined]

    def _offer_profiles(self) -> None:
        names = [*PROFILES]
        if self.instance.pk and self.instance.profile not in names:
            names.append(self.instance.profile)  # so that the form shows it; the model rejects it
        self.fields["profile"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]
        self.fields["profile"].widget = SelectInput(choices=[(name, name) for name in names])

    def clean_secret(self) -> dict[str, str]:
        secret: dict[str, str] = self.cleaned_data["secret"] or {}
        if SEALED not in secret:
            return secret
        if secret == UNCHANGED and self.initial.get("secret") == UNCHANGED:
            return dict(self.instance.secret)
        raise forms.ValidationError("enter the secret itself in the field New secret")

    def clean_new_secret(self) -> str:
        secret: str = self.cleaned_data["new_secret"]
        if not secret.isascii() or not secret.isprintable():
            raise forms.ValidationError("it has characters that a header cannot contain")
        return secret

    @sensitive_variables("typed")
    def clean(self) -> None:
        super().clean()
        typed = self.cleaned_data.get("new_secret")
        if not typed and "new_secret" in self.cleaned_data and self.session is not None:
            typed = pending_secret.recall(self.session, self.cleaned_data.get("pending_secret", ""))
            self.cleaned_data["new_secret"] = typed
        if typed and "base_url" in self.cleaned_data:
            sealed = encrypt_secret(typed, self.cleaned_data["base_url"])
            self.cleaned_data["secret"] = {SEALED: sealed}
            self.errors.pop("secret", None)

    @sensitive_variables("typed")
    def full_clean(self) -> None:
        """Validate the form, then keep a typed secret if there are errors, else forget it."""
        super().full_clean()
        if self.session is None or not self.is_bound:
            return
        typed = self.cleaned_data.get("new_secret") if hasattr(self, "cleaned_data") else ""
        if not self.errors or not typed:
            pending_secret.forget(self.session)
            return
        data: Any = self.data.copy()  # type: ignore[attr-defined]  # a QueryDict, which is immutable
        data["pending_secret"] = pending_secret.keep(self.session, typed)
        self.data = data
        self["new_secret"].help_text = KEPT_HELP
