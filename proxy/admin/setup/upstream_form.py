"""The form of an upstream. It accepts a new secret and never shows the stored secret."""

from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.core.exceptions import ValidationError

from proxy.models import Upstream
from proxy.models.setup.upstreams import SEALED
from proxy.secret_encryption import encrypt_secret
from translator.capabilities import PROFILES

if TYPE_CHECKING:  # generic only in django-stubs
    UpstreamModelForm = forms.ModelForm[Upstream]
    Password = forms.PasswordInput
else:
    from unfold.widgets import UnfoldAdminPasswordWidget as Password

    UpstreamModelForm = forms.ModelForm

UNCHANGED: Final = {SEALED: "unchanged"}
"""Placeholder that the form shows instead of a secret stored encrypted in the database."""


def secret_location(upstream: Upstream) -> str:
    """Return where the upstream's secret is stored, as text without the secret."""
    if upstream.has_encrypted_secret:
        return "stored, encrypted for this base URL"
    try:
        upstream.check_secret()
    except ValidationError:
        return "invalid"
    return ", ".join(f"{kind} {place}" for kind, place in upstream.secret.items()) or "none"


class UpstreamForm(UpstreamModelForm):
    new_secret = forms.CharField(
        label="New secret",
        required=False,
        max_length=4_096,
        widget=Password(render_value=False, attrs={"autocomplete": "new-password"}),
        help_text="Stored encrypted, for this base URL only; never shown again. Empty: no change.",
    )

    class Meta:
        model = Upstream
        fields = "__all__"
        labels = {"base_url": "Base URL", "when_client_leaves": "When a client leaves"}
        help_texts = {
            "base_url": "The gateway appends /responses or /chat/completions: "
            "https://api.openai.com/v1. For Anthropic the host without /v1.",
            "profile": ", ".join(PROFILES),
            "capabilities": "Where this server differs from its profile: "
            '{"required_tool_choice": true}',
            "extra_body": "Fields to add to every request; model and stream are not allowed.",
            "when_client_leaves": "Read the response to its end if the server bills all of it: "
            "then the row has the billed tokens, not the delivered ones.",
            "connection_reuse": "Connections per key limit a response that the upstream sends "
            "without a request to that key, but need more connections.",
            "connection": "Proxy, trusted CAs, client certificate and headers: "
            '{"proxy": "http://proxy:3128", "ca_file": "/etc/ssl/company.pem"}',
            "allow_http": "Also for a public host: the secret is sent unencrypted.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk and self.instance.has_encrypted_secret:
            self.initial["secret"] = UNCHANGED

    def clean_secret(self) -> dict[str, str]:
        secret: dict[str, str] = self.cleaned_data["secret"] or {}
        if not isinstance(secret, dict) or SEALED not in secret:
            return secret
        if secret == UNCHANGED and self.initial.get("secret") == UNCHANGED:
            return dict(self.instance.secret)
        raise forms.ValidationError("enter the secret itself in the field New secret")

    def clean_new_secret(self) -> str:
        secret: str = self.cleaned_data["new_secret"]
        if not secret.isascii() or not secret.isprintable():
            raise forms.ValidationError("it has characters that a header cannot contain")
        return secret

    def clean(self) -> None:
        super().clean()
        if self.cleaned_data.get("new_secret") and "base_url" in self.cleaned_data:
            sealed = encrypt_secret(self.cleaned_data["new_secret"], self.cleaned_data["base_url"])
            self.cleaned_data["secret"] = {SEALED: sealed}
