"""What is new in a request: clients repeat their whole history, a reader wants the last turn."""

import pytest

from proxy.admin.conversation import TURNS_A_PAGE, read_conversation
from tests.proxy.admin import cast
from tests.proxy.admin.session_cast import MORE_TOOLS, Talk, call, post, result, text, user

pytestmark = pytest.mark.django_db


def opened(client, story, query=""):
    answer = client.get(f"/admin/proxy/exchange/{story.opening.id}/change/{query}")
    assert answer.status_code == 200
    return answer


def shown(answer):
    talk = answer.context["talk"]
    return [(turn.number, turn.role, turn.is_new, turn.is_answered) for turn in talk.turns]


@pytest.fixture
def talk():
    """Three requests: a question, its tool's result with other tools on offer, a second question."""
    said = Talk(cast.NOON, user="ben")
    said.ask(user("Why does it fail?"), answer=[text("I look."), call("toolu_1", "Read")])
    said.tools = MORE_TOOLS
    said.ask(user(result("toolu_1", "assert 4 == 3")), answer=[text("One too many.")])
    said.ask(user("Then mend it."), answer=[text("It is mended.")])
    post(said.said)
    return said.said


def test_a_request_shows_what_it_added_below_the_answer_that_it_follows(root, talk):
    page = opened(root, talk[2])

    assert shown(page) == [(3, "assistant", False, False), (4, "user", True, False)]
    words = page.content.decode()
    assert "Why does it fail?" not in words.split("mb-turns")[1]
    assert "3 of 5 come before these, as in the request before:" in words
    assert f'href="/admin/proxy/exchange/{talk[1].opening.id}/change/"' in words
    whole = opened(root, talk[2], "?from=0")
    assert [turn.number for turn in whole.context["talk"].turns] == [0, 1, 3, 4]
    assert "Show only what is new in this request" in whole.content.decode()


def test_results_that_are_new_are_said_at_the_call_that_they_answer(root, talk):
    page = opened(root, talk[1])

    assert shown(page) == [(1, "assistant", False, True)]
    assert "its results are new in this request" in page.content.decode()
    assert "assert 4 == 3" in page.content.decode()


def test_what_stayed_of_the_setting_is_said(root, talk):
    first, second, third = (opened(root, story).content.decode() for story in talk)

    assert "the request before" not in first
    assert "2 blocks · as in the request before" in second
    assert "6 offered · changed since the request before" in second
    assert "6 offered · as in the request before" in third


def test_a_request_before_that_is_not_kept_is_compared_with_nothing(root, talk):
    from proxy.models import Transcript

    Transcript.objects.filter(pk=talk[1].opening.id).delete()

    page = opened(root, talk[2])

    assert [turn.number for turn in page.context["talk"].turns] == [3, 4]
    assert "offered · " not in page.content.decode()


def test_a_request_before_of_another_team_is_not_named(client, talk):
    from proxy.models import Exchange

    Exchange.objects.filter(pk=talk[1].opening.id).update(team="research")
    client.force_login(cast.ada())

    page = opened(client, talk[2])

    assert talk[1].opening.id not in page.content.decode()
    assert "3 of 5 come before these" in page.content.decode()


MANY = [{"role": "user", "content": f"turn {n}"} for n in range(60)]
ASKED = {"role": "user", "content": "again"}
SAID = {"role": "assistant", "content": "an answer"}


@pytest.mark.parametrize(
    ("messages", "new_from", "numbers", "new_before"),
    [
        (MANY, 0, range(36, 60), 0),  # nobody knows: the last page
        (MANY, 58, range(58, 60), 0),
        (MANY, 20, range(36, 60), 16),  # more than a page is new
        (MANY, 60, range(59, 60), 0),  # the same request again
        ([*MANY, SAID, ASKED], 60, range(60, 62), 0),
        ([*MANY, SAID, ASKED], 62, range(60, 62), 0),
        ([*MANY, SAID], 61, range(60, 61), 0),  # a client that wants its answer to be gone on with
        ([ASKED], 1, range(1), 0),
        ([], 3, range(0), 0),
    ],
)
def test_a_page_begins_where_the_news_begin(messages, new_from, numbers, new_before):
    found = read_conversation({"messages": messages}, None, new_from=new_from)

    assert [turn.number for turn in found.turns] == list(numbers)
    assert found.new_before == new_before
    assert len(found.turns) <= TURNS_A_PAGE
