"""The rules of a key, which its form shows as fields and the API as JSON: limits, models, options."""

from html import unescape

import pytest

from proxy.models import ApiKey, AuditEntry, Team
from tests.proxy.admin import factories

from .key_form import URL, form

pytestmark = pytest.mark.django_db


def test_limits_by_model_are_lines_of_the_form(root):
    lines = "claude-opus-* rpm=2 concurrency=1\r\no3 tpm=1000"
    root.post(f"{URL}add/", form(factories.team(), limits_0="60", limits_3=lines))

    key = ApiKey.objects.get()
    assert key.limits == {
        "rpm": 60,
        "models": {"claude-opus-*": {"rpm": 2, "concurrency": 1}, "o3": {"tpm": 1000}},
    }
    html = unescape(root.get(f"{URL}{key.pk}/change/").content.decode())
    assert ">claude-opus-* rpm=2 concurrency=1\no3 tpm=1000</textarea>" in html


@pytest.mark.parametrize(
    "lines",
    ["claude-*", "claude-* 5", "claude-* rps=5", "claude-* rpm=-1", "o3 rpm=1\no3 rpm=2",
     "o3 rpm=0", "\n".join(f"m{n} rpm=1" for n in range(51))],
)  # fmt: skip
def test_a_wrong_limit_by_model_is_refused_and_kept(root, lines):
    page = root.post(f"{URL}add/", form(factories.team(), limits_3=lines))

    assert not ApiKey.objects.exists()
    html = unescape(page.content.decode())
    assert 'id="id_limits_error"' in html
    assert lines.splitlines()[0] in html


def test_form_fields_are_stored_as_json(root):
    typed = {
        "limits_0": "60", "limits_2": "5", "models_allowed": " claude-*\r\n\r\ngpt-5.2 ",
        "ip_allow": "10.0.0.0/8\n2001:db8::/32",
        "options_0": "yes", "options_1": "metadata,blocks", "options_2": "metadata",
    }  # fmt: skip
    assert "secret" in root.post(f"{URL}add/", form(factories.team(), **typed)).context

    key = ApiKey.objects.get()
    assert key.limits == {"rpm": 60, "concurrency": 5}
    assert key.models_allowed == ["claude-*", "gpt-5.2"]
    assert key.ip_allow == ["10.0.0.0/8", "2001:db8::/32"]
    assert key.options == {"strict": True, "events": ["metadata", "blocks"], "store": "metadata"}
    html = unescape(root.get(f"{URL}{key.pk}/change/").content.decode())
    assert 'name="limits_0" value="60"' in html
    assert ">claude-*\ngpt-5.2</textarea>" in html
    assert '<option value="metadata,blocks" selected' in html

    AuditEntry.objects.all().delete()
    root.post(f"{URL}{key.pk}/change/", form(key.team, **typed | {"limits_0": "61"}))
    (entry,) = factories.audit()
    limits = {"rpm": 60, "concurrency": 5}
    assert entry.changes == {"limits": {"before": limits, "after": limits | {"rpm": 61}}}


@pytest.mark.parametrize(
    ("field", "typed", "error"),
    [
        ("limits_0", "sixty", "Requests per minute: a whole number from 1"),
        ("limits_1", "0", "Input tokens per minute: a whole number from 1"),
        ("limits_2", "1.5", "Concurrent requests: a whole number from 1"),
        ("models_allowed", "x" * 201, "entry 1: Expected str of length <= 200"),
        ("ip_allow", "10.0.0.0/8\n10.0.0.1/8", "entry 2: '10.0.0.1/8' has host bits set"),
        ("options_1", "all", "Select a valid choice"),
        ("options_2", "full", "Select a valid choice"),
    ],
)
def test_invalid_input_shows_an_error_at_its_field(root, field, typed, error):
    team, name = factories.team(), field.rpartition("_")[0] if field[-1].isdigit() else field
    forms = {f"{URL}add/": form(team, **{field: typed})}
    if name in ("limits", "models_allowed"):
        page = {"name": "x", "store": "full", "retention_days": 1, "models_allowed": ""}
        forms["/admin/proxy/team/add/"] = {**page, field: typed}

    for url, sent in forms.items():
        answer = root.post(url, sent)
        ((shown_at, errors),) = answer.context["adminform"].form.errors.items()
        assert shown_at == name
        assert errors[0].startswith(error)
        assert (
            typed[:20].splitlines()[0] in answer.content.decode()
        )  # the input is still in the form
    assert not ApiKey.objects.exists()
    assert not Team.objects.exclude(pk=team.pk).exists()


def test_an_invalid_stored_value_is_shown_and_replaced_on_save(root):
    key, _ = factories.key("k", limits=[60], options={"store": "full"}, models_allowed="claude-*")
    url = f"{URL}{key.pk}/change/"

    page = unescape(root.get(url).content.decode())
    root.post(url, form(key.team, name="k", models_allowed="claude-*", limits_0="60"))

    for error in ("Expected object, got array", "store: Invalid enum value 'full'", "got str"):
        assert f"The stored value is invalid ({error}" in page or error in page
    key.refresh_from_db()
    assert (key.limits, key.options, key.models_allowed) == ({"rpm": 60}, {}, ["claude-*"])
    (entry,) = factories.audit()
    assert entry.changes["limits"] == {"before": [60], "after": {"rpm": 60}}
    assert entry.changes["options"] == {"before": {"store": "full"}, "after": {}}


@pytest.mark.parametrize(
    "options", [{"strict": False}, {"events": []}, {"events": ["blocks", "metadata"]}, {}]
)
def test_the_api_stores_options_unchanged(root, options):
    key, _ = factories.key(
        "k", options={"store": "metadata"}, limits={"rpm": 1}, models_allowed=["a b"]
    )
    row = f"/api/v1/keys/apikey_{key.pk}/"

    first = root.patch(row, {"options": options}, content_type="application/json")
    second = root.patch(row, {"name": "l"}, content_type="application/json")

    assert (first.status_code, second.status_code) == (200, 200)
    key.refresh_from_db()
    assert (key.options, key.limits, key.models_allowed) == (options, {"rpm": 1}, ["a b"])
    assert len(factories.audit()) == 2


@pytest.mark.parametrize(
    "rules", [{"limits": [60]}, {"limits": {"rmp": 6}}, {"options": "x"}, {"ip_allow": {}}]
)
def test_the_api_rejects_a_row_with_invalid_rules(root, rules):
    key, _ = factories.key("k", **rules)
    row = f"/api/v1/keys/apikey_{key.pk}/"

    answer = root.patch(row, {"name": "l"}, content_type="application/json")

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(*rules)
    key.refresh_from_db()
    assert key.name == "k"
