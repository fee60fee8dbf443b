"""The new messages of a request: clients resend the whole history, and the page starts at the end."""

import pytest

from proxy.admin.transcript.conversation import TURNS_PER_PAGE, read_conversation
from tests.proxy.admin import factories
from tests.proxy.admin.session_factories import (
    MORE_TOOLS,
    ConversationBuilder,
    call,
    result,
    text,
    user,
    write_to_database,
)

pytestmark = pytest.mark.django_db


def open_page(client, records, query=""):
    answer = client.get(f"/admin/proxy/exchange/{records.opening.id}/change/{query}")
    assert answer.status_code == 200
    return answer


def shown_turns(answer):
    conversation = answer.context["conversation"]
    return [
        (turn.number, turn.role, turn.is_new, turn.has_new_results) for turn in conversation.turns
    ]


@pytest.fixture
def requests():
    """Three requests: a question, a tool result with other tools, and a second question."""
    builder = ConversationBuilder(factories.NOON, user="ben")
    builder.add_request(
        user("Why does it fail?"), answer=[text("I look."), call("toolu_1", "Read")]
    )
    builder.tools = MORE_TOOLS
    builder.add_request(user(result("toolu_1", "assert 4 == 3")), answer=[text("One too many.")])
    builder.add_request(user("Then fix it."), answer=[text("It is fixed.")])
    write_to_database(builder.records)
    return builder.records


def test_the_page_starts_at_the_answer_before_the_new_messages(root, requests):
    page = open_page(root, requests[2])

    assert shown_turns(page) == [(3, "assistant", False, False), (4, "user", True, False)]
    words = page.content.decode()
    assert "Why does it fail?" not in words.split("mb-turns")[1]
    assert "3 of 5 messages are earlier, all in the previous request:" in words
    assert f'href="/admin/proxy/exchange/{requests[1].opening.id}/change/"' in words
    whole = open_page(root, requests[2], "?from=0")
    assert [turn.number for turn in whole.context["conversation"].turns] == [0, 1, 3, 4]
    assert "Show only what is new in this request" in whole.content.decode()


def test_new_results_are_marked_at_their_call(root, requests):
    page = open_page(root, requests[1])

    assert shown_turns(page) == [(1, "assistant", False, True)]
    assert "results are new in this request" in page.content.decode()
    assert "assert 4 == 3" in page.content.decode()


def test_changes_of_system_and_tools_are_shown(root, requests):
    first, second, third = (open_page(root, records).content.decode() for records in requests)

    assert "previous request" not in first
    assert "2 blocks · unchanged" in second
    assert "6 tools · changed since the previous request" in second
    assert "6 tools · unchanged" in third


def test_a_previous_request_without_transcript_is_not_compared(root, requests):
    from proxy.models import Transcript

    Transcript.objects.filter(pk=requests[1].opening.id).delete()

    page = open_page(root, requests[2])

    assert [turn.number for turn in page.context["conversation"].turns] == [3, 4]
    assert "tools · " not in page.content.decode()


def test_a_previous_request_of_another_team_is_not_shown(client, requests):
    from proxy.models import Exchange

    Exchange.objects.filter(pk=requests[1].opening.id).update(team="research")
    client.force_login(factories.ada())

    page = open_page(client, requests[2])

    assert requests[1].opening.id not in page.content.decode()
    assert "3 of 5 messages are earlier" in page.content.decode()


MANY = [{"role": "user", "content": f"turn {n}"} for n in range(60)]
QUESTION = {"role": "user", "content": "again"}
ANSWER = {"role": "assistant", "content": "an answer"}


@pytest.mark.parametrize(
    ("messages", "new_from", "numbers", "new_before"),
    [
        (MANY, 0, range(36, 60), 0),  # not known: the last page
        (MANY, 58, range(58, 60), 0),
        (MANY, 20, range(36, 60), 16),  # more new messages than fit on a page
        (MANY, 60, range(59, 60), 0),  # the same request again
        ([*MANY, ANSWER, QUESTION], 60, range(60, 62), 0),
        ([*MANY, ANSWER, QUESTION], 62, range(60, 62), 0),
        ([*MANY, ANSWER], 61, range(60, 61), 0),  # the client prefills the answer
        ([QUESTION], 1, range(1), 0),
        ([], 3, range(0), 0),
    ],
)
def test_a_page_starts_at_the_first_new_message(messages, new_from, numbers, new_before):
    found = read_conversation({"messages": messages}, None, new_from=new_from)

    assert [turn.number for turn in found.turns] == list(numbers)
    assert found.new_before == new_before
    assert len(found.turns) <= TURNS_PER_PAGE
