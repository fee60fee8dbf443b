"""The form of an upstream: its secret goes in and never comes out."""

from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.core.exceptions import ValidationError

from proxy.models import Upstream
from proxy.models.routes import SEALED
from proxy.sealing import seal
from translator.profiles import PROFILES

if TYPE_CHECKING:  # the stubs' class is generic, Django's is not
    UpstreamModelForm = forms.ModelForm[Upstream]
    Password = forms.PasswordInput
else:
    from unfold.widgets import UnfoldAdminPasswordWidget as Password

    UpstreamModelForm = forms.ModelForm

KEPT: Final = {SEALED: "kept as it is"}
"""What the form shows and takes for a secret that stands in the database."""


def told(upstream: Upstream) -> str:
    """Where the secret is, for whoever only looks."""
    if upstream.is_sealed:
        return "stored, encrypted for this base URL"
    try:
        upstream.check_secret()
    except ValidationError:
        return "what stands there is none"
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
            "base_url": "What /responses or /chat/completions is appended to: "
            "https://api.openai.com/v1. Of Anthropic the host without /v1.",
            "profile": ", ".join(PROFILES),
            "capabilities": "Where this server differs from its profile: "
            '{"required_tool_choice": true}',
            "extra_body": "Fields that are added to every request; not model and stream.",
            "when_client_leaves": "Hear it to its end where the server bills the whole answer all "
            "the same: then the row tells what was billed, not what was delivered.",
            "connection_reuse": "Connections of a key's own confine a response that the upstream "
            "sends without a request to that key; more connections are the price.",
            "allow_http": "Also to a public host: the secret goes in clear.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk and self.instance.is_sealed:
            self.initial["secret"] = KEPT

    def clean_secret(self) -> dict[str, str]:
        secret: dict[str, str] = self.cleaned_data["secret"] or {}
        if not isinstance(secret, dict) or SEALED not in secret:
            return secret
        if secret == KEPT and self.initial.get("secret") == KEPT:
            return dict(self.instance.secret)
        raise forms.ValidationError("a secret itself goes into the field New secret")

    def clean_new_secret(self) -> str:
        secret: str = self.cleaned_data["new_secret"]
        if not secret.isascii() or not secret.isprintable():
            raise forms.ValidationError("it holds characters that no header can carry")
        return secret

    def clean(self) -> None:
        super().clean()
        if self.cleaned_data.get("new_secret") and "base_url" in self.cleaned_data:
            sealed = seal(self.cleaned_data["new_secret"], self.cleaned_data["base_url"])
            self.cleaned_data["secret"] = {SEALED: sealed}
