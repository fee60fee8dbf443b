"""The form of an upstream: fields instead of JSON, and a typed secret that survives an error."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils.html import escape

from proxy.admin.core.json_column_field import AssignmentsField, AssignmentsInput
from proxy.admin.core.typed_fields import StructField
from proxy.admin.setup import pending_secret
from proxy.admin.setup.upstream_form import CapabilitiesField, SecretPlaceField
from proxy.models import AuditEntry, Upstream
from proxy.models.setup.columns import Timeouts
from translator.capabilities import PROFILES

CAPABILITIES = [part.name for part in CapabilitiesField().parts]
pytestmark = pytest.mark.django_db
URL = "/admin/proxy/upstream/add/"
SECRET = "sk-typed-secret-0123456789"


def form(**changes):
    return {
        "name": "vllm", "dialect": "chat", "base_url": "https://a.example", "profile": "vllm",
        "enabled": "on", "when_client_leaves": "abort", "connection_reuse": "shared",
    } | changes  # fmt: skip


def part_of(name):
    return f"capabilities_{CAPABILITIES.index(name)}"


def token_in(page):
    return re.search(r'name="pending_secret" value="([^"]+)"', page)[1]


def test_the_fields_make_the_columns(root):
    answer = root.post(URL, form(
        secret_0="env", secret_1="VLLM_KEY", timeouts_0="5", timeouts_2="0.5",
        extra_body="top_k = 20\nchat_template_kwargs.enable_thinking = false\nstyle = plain words",
        **{part_of("required_tool_choice"): "no", part_of("max_tools"): "9",
           part_of("efforts"): "low, high", part_of("reasoning_field"): '""'},
    ))  # fmt: skip

    assert answer.status_code == 302, answer.content.decode()
    upstream = Upstream.objects.get()
    assert upstream.secret == {"env": "VLLM_KEY"}
    assert upstream.timeouts == {"connect_s": 5, "idle_s": 0.5}
    assert upstream.extra_body == {
        "top_k": 20, "chat_template_kwargs": {"enable_thinking": False}, "style": "plain words"
    }  # fmt: skip
    assert upstream.capabilities == {
        "efforts": ["low", "high"], "max_tools": 9, "required_tool_choice": False,
        "reasoning_field": "",
    }  # fmt: skip


def test_a_new_upstream_is_tested_next(root):
    answer = root.post(URL, form())

    upstream = Upstream.objects.get()
    assert answer["Location"] == f"/admin/proxy/upstream/{upstream.pk}/test/"
    assert "was added" in root.get(answer["Location"]).content.decode()
    answer = root.post(URL, form(name="other", _continue="1"))
    assert answer["Location"].endswith("/change/")


def test_the_form_offers_every_profile_and_capability(root):
    page = root.get(URL).content.decode()

    assert all(f'<option value="{name}"' in page for name in PROFILES)
    assert page.count('name="capabilities_') == len(CAPABILITIES)


VALUES = (
    (StructField(Timeouts), {"connect_s": 5, "total_s": 0.25}),
    (SecretPlaceField(required=False), {"file": "/run/secrets/x"}),
    (SecretPlaceField(required=False), {}),
    (CapabilitiesField(required=False), {"efforts": [], "thinking_switch": ""}),
    (CapabilitiesField(required=False), {"efforts": ["none"], "images": True, "max_tools": 0}),
    (CapabilitiesField(required=False), {"no_such": True}),
)


@pytest.mark.parametrize(("field", "value"), VALUES, ids=lambda one: str(one)[:40])
def test_a_shown_value_is_read_back_unchanged(field, value):
    parts = field.widget.decompress(field.prepare_value(value))

    assert field.clean(parts) == value
    assert not field.has_changed(value, parts) or "no_such" in value


BODIES = (
    {},
    {"a": 1, "b": {"c": {"d": [1, {"e": None}]}, "f": "x = y"}},
    {"text": "true", "number": "1", "spaces": " a ", "empty": "", "lines": "a\nb", "ü": "ö"},
    {"with.dot": 1},
    {"nested": {"with space": 1}, "empty": {}},
    {"quoted": '"a"', "brace": "{", "float": 1.5},
)


@pytest.mark.parametrize("body", BODIES, ids=str)
def test_an_extra_body_is_read_back_unchanged(body):
    text = AssignmentsInput().format_value(body)

    assert AssignmentsField(required=False).clean(text) == body
    assert not AssignmentsField(required=False).has_changed(body, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("top_k", "expected name = value"),
        ("= 1", "expected name = value"),
        ("a = 1\na = 2", "a has a value already"),
        ("a = 1\na.b = 2", "a has a value already"),
        ("a." * 5000 + "a = 1", "more than 100 dots"),
        ("model = x", "'model' is 'x'; the route's targets name the model"),
        ("a = " + "[" * 100_000, ""),
        ("a = NaN", "Enter a valid JSON"),
    ],
    ids=lambda text: text[:20],
)
def test_a_wrong_extra_body_is_refused(root, text, message):
    answer = root.post(URL, form(extra_body=text))

    assert answer.status_code in {200, 302}
    if message:
        assert escape(message) in answer.content.decode()
        assert not Upstream.objects.exists()


def test_a_typed_secret_survives_the_error_of_another_field(root):
    wrong = root.post(URL, form(new_secret=SECRET, timeouts_0="soon")).content.decode()
    token = token_in(wrong)
    stored = str([session.get_decoded() for session in Session.objects.all()])

    answer = root.post(URL, form(pending_secret=token))

    assert answer.status_code == 302, answer.content.decode()
    assert Upstream.objects.get().credential() == SECRET
    assert "kept encrypted on the server for ten minutes" in wrong
    assert token in stored
    assert SECRET not in wrong + stored
    left = [session.get_decoded() for session in Session.objects.all()]
    assert not any(pending_secret.SESSION_KEY in session for session in left)
    assert SECRET not in str(list(AuditEntry.objects.values()))


def test_a_pending_secret_survives_several_errors_and_a_new_one_replaces_it(root):
    first = root.post(URL, form(new_secret=SECRET, timeouts_0="soon")).content.decode()
    again = root.post(URL, form(pending_secret=token_in(first), timeouts_0="soon")).content.decode()

    root.post(URL, form(pending_secret=token_in(again), new_secret="sk-another"))

    assert Upstream.objects.get().credential() == "sk-another"


@pytest.mark.parametrize("later", [timedelta(minutes=9), timedelta(minutes=11)])
def test_a_pending_secret_ends_after_ten_minutes(root, later):
    wrong = root.post(URL, form(new_secret=SECRET, timeouts_0="soon")).content.decode()
    session = root.session  # as if the secret had been typed earlier
    session[pending_secret.SESSION_KEY]["until"] -= later.total_seconds()
    session.save()

    root.post(URL, form(pending_secret=token_in(wrong)))

    is_kept = later < timedelta(minutes=10)
    assert Upstream.objects.get().credential() == (SECRET if is_kept else "")


def test_a_token_of_another_session_recalls_nothing(root):
    wrong = root.post(URL, form(new_secret=SECRET, timeouts_0="soon")).content.decode()
    other = Client()
    other.force_login(User.objects.create_superuser("rita"))

    other.post(URL, form(pending_secret=token_in(wrong)))

    assert Upstream.objects.get().credential() == ""


def test_the_message_after_a_change_names_the_fields_but_no_secret(root):
    root.post(URL, form())
    page = f"/admin/proxy/upstream/{Upstream.objects.get().pk}/change/"

    changed = root.post(
        page, form(profile="ollama", new_secret=SECRET, timeouts_0="7"), follow=True
    ).content.decode()

    assert "profile: vllm → ollama" in changed
    assert "new_secret: changed" in changed
    assert SECRET not in changed
