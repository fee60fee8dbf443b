"""The form of a route: the conditions of its targets are fields, and words where they are read-only."""

import pytest

from proxy.admin.setup.route_admin import conditions_text
from proxy.models import Route, RouteTarget, Upstream

pytestmark = pytest.mark.django_db
WHEN = {"max_input_tokens": 32_000, "client": "claude-cli *", "headers": {"x-team": "maps*"}}


@pytest.fixture
def target() -> RouteTarget:
    vllm = Upstream.objects.create(name="vllm", dialect="chat", base_url="http://vllm/v1")
    return Route.objects.create(model="qwen*").targets.create(upstream=vllm, when=WHEN)


def save(client, target: RouteTarget, *when: str, prefix: str = "targets-0"):
    """Post the form of the route with these four inputs of the conditions."""
    form = {
        "model": "qwen*", "team": "", "position": "0",
        "targets-TOTAL_FORMS": "1", "targets-INITIAL_FORMS": "1",
        f"{prefix}-id": target.pk, f"{prefix}-route": target.route.pk,
        f"{prefix}-upstream": target.upstream.pk, f"{prefix}-position": "0", f"{prefix}-weight": "1",
        f"{prefix}-model": "",
        **{f"{prefix}-when_{number}": value for number, value in enumerate(when)},
    }  # fmt: skip
    answer = client.post(f"/admin/proxy/route/{target.route.pk}/change/", form)
    target.refresh_from_db()
    return answer


def test_the_conditions_are_shown_as_fields_and_kept(root, target) -> None:
    page = root.get(f"/admin/proxy/route/{target.route.pk}/change/").content.decode()

    assert 'value="32000"' in page
    assert "x-team: maps*" in page
    assert "&quot;max_input_tokens" not in page
    answer = save(root, target, "", "32000", "claude-cli *", "x-team: maps*")
    assert (answer.status_code, target.when) == (302, WHEN)


def test_each_condition_can_be_changed_and_removed(root, target) -> None:
    save(root, target, "10", "", "", "X-Team: maps*\r\nx-kind: nightly")
    assert target.when == {
        "min_input_tokens": 10,
        "headers": {"x-team": "maps*", "x-kind": "nightly"},
    }

    save(root, target, "", "", "", "")
    assert target.when == {}


@pytest.mark.parametrize(
    ("when", "message"),
    [
        (("0", "", "", ""), "Input tokens, at least: a whole number from 1, or empty"),
        (("9", "8", "", ""), "min_input_tokens is larger than max_input_tokens"),
        (("", "", "", "no colon"), "is not a header name, a colon and a pattern"),
        (("", "", "x" * 201, ""), "at most 200 characters"),
        (("", "", "", "\n".join(f"x-{n}: a" for n in range(17))), "length &lt;= 16"),
    ],
)
def test_invalid_conditions_are_explained_and_not_stored(root, target, when, message) -> None:
    answer = save(root, target, *when)

    assert answer.status_code == 200
    assert message in answer.content.decode()
    assert target.when == WHEN


def test_a_route_of_the_file_has_its_conditions_in_words(root, target) -> None:
    Route.objects.update(managed=True)
    words = "input tokens, at most: 32000; client and version: claude-cli *; header x-team: maps*"

    form = root.get(f"/admin/proxy/route/{target.route.pk}/change/").content.decode()
    listed = root.get("/admin/proxy/route/").content.decode()

    assert words in form
    assert f"vllm → the same name ({words})" in listed
    assert conditions_text({}) == "every request"
    assert conditions_text({"odd": 1}) == '{"odd": 1}'
