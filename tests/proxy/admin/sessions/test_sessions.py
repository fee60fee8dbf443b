"""The list of sessions, the timeline of a session, and its conversation."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from proxy.admin.sessions.timeline import cache_break_ids, lanes_of, steps_of
from proxy.ledger.transcripts.session_diff import additions
from proxy.models import Exchange
from tests.proxy.admin import factories
from tests.proxy.admin.session_factories import (
    SESSION,
    ConversationBuilder,
    call,
    result,
    text,
    user,
)

pytestmark = pytest.mark.django_db

URL = f"/admin/sessions/one/?id={SESSION}"


def queries(client, url):
    """Return the number of queries of a page after the first visit."""
    client.get(url)
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return len(captured)


def words_of(answer):
    """Return the text of the page, without tags and repeated spaces."""
    main = answer.content.decode().split("<article", 1)[-1]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", main)).split())


class TestList:
    def add_session(self, at, session_id, output):
        usage = {"input": 10, "output": output, "cache_read": 0, "source": "reported"}
        return factories.record(
            at=at, opening={"session_id": session_id}, closing={"usage": usage},
            body=factories.request_body(messages=[user(f"message of {session_id}")]),
        )  # fmt: skip

    def shown(self, client, query):
        page = client.get(f"/admin/sessions/{query}").content.decode()
        return re.findall(r"message of ([a-z-]+)", page)

    def test_yesterdays_most_expensive_session_is_two_clicks_away(self, root):
        factories.price()
        yesterday = now() - timedelta(days=1)
        self.add_session(yesterday, "cheap", 10)
        self.add_session(yesterday, "expensive", 90_000)
        self.add_session(yesterday, "medium", 5_000)
        self.add_session(now(), "today-most-expensive", 500_000)

        assert self.shown(root, "")[0] == "today-most-expensive"
        assert self.shown(root, "?span=yesterday&sort=cost") == ["expensive", "medium", "cheap"]
        assert self.shown(root, f"?day={yesterday:%Y-%m-%d}&sort=cost")[0] == "expensive"

    def test_a_session_is_one_row_with_its_totals(self, root, rows):
        page = root.get("/admin/sessions/?day=2026-11-20").content.decode()

        assert page.count("mb-session-preview") == 1
        assert "The tests of the tile cache fail since yesterday" in page
        assert "1 agent" in page
        assert "1 failed" in page
        assert ">13<" in page

    @pytest.mark.parametrize(
        ("query", "found"),
        [("ben", True), ("ci", True), ("claude-opus-5-5", True), (SESSION[:8], True), ("zed", False),
         ("%", False), ("", True)],
    )  # fmt: skip
    def test_search(self, root, rows, query, found):
        page = root.get("/admin/sessions/", {"day": "2026-11-20", "q": query}).content.decode()

        assert ("mb-session-preview" in page) is found

    @pytest.mark.parametrize(
        "query",
        ["?day=invalid", "?day=9999-12-31", "?span=x&sort=y&page=-1", "?page=9999", "?q=%00"],
    )
    def test_invalid_parameters_are_ignored(self, root, rows, query):
        assert root.get(f"/admin/sessions/{query}").status_code == 200

    def test_pages_are_adjacent(self, root):
        for n in range(55):
            self.add_session(
                factories.NOON + timedelta(minutes=n),
                f"s-{chr(97 + n // 26)}{chr(97 + n % 26)}",
                10,
            )

        first = self.shown(root, "?day=2026-11-20")
        second = self.shown(root, "?day=2026-11-20&page=1")

        assert (len(first), len(second)) == (50, 5)
        assert not {*first} & {*second}

    def test_totals_include_only_rows_that_the_user_may_see(self, client, rows):
        factories.record(
            team="research", at=factories.NOON, opening={"session_id": SESSION, "user": "cleo"}
        )
        client.force_login(factories.staff("cleo", groups=("member",)))

        page = client.get("/admin/sessions/?day=2026-11-20").content.decode()

        assert "tile cache" not in page
        assert "research / ci" in page

    @pytest.mark.parametrize("sort", ["newest", "cost"])
    def test_a_page_takes_a_fixed_number_of_queries(self, root, sort):
        url = f"/admin/sessions/?day=2026-11-20&sort={sort}"
        self.add_session(factories.NOON, "one", 10)
        few = queries(root, url)
        for n in range(20):
            self.add_session(factories.NOON, f"s-{chr(97 + n)}", 10)

        assert queries(root, url) == few <= 18


class TestTimeline:
    def steps(self, rows):
        broken = [row for row in rows if row.pk in cache_break_ids(rows)]
        found = additions(broken, with_texts=False)
        return steps_of(rows, {name: each.settings_parts for name, each in found.items()})

    def test_lanes_are_main_agents_branches_and_side_calls(self, rows):
        lanes = lanes_of(self.steps(rows))

        assert [(lane.label, len(lane.rows)) for lane in lanes] == [
            ("main", 6), ("agent explore-7", 2), ("branch from #8", 4), ("side calls", 1),
        ]  # fmt: skip

    def test_a_retry_of_a_failed_request_stays_on_its_lane(self, rows):
        steps = self.steps(rows)

        assert steps[5].row.outcome == "upstream_error"
        assert steps[6].lane.kind == "main"
        assert steps[6].previous_number == steps[5].previous_number

    def test_a_branch_has_the_number_of_its_origin(self, rows):
        branches = [step for step in self.steps(rows) if step.starts_branch]

        assert [(step.number, step.previous_number) for step in branches] == [(10, 8)]

    def test_each_cache_break_has_its_cause(self, rows):
        breaks = {step.number: step.cache_break for step in self.steps(rows) if step.cache_break}

        assert {number: each.cause_text for number, each in breaks.items()} == {
            11: "the tools changed",
            13: "13 minutes passed; caches usually last 5",
        }
        # 1.25 - 0.125 dollars per million, for each cached token that was not read from the cache.
        assert all(each.extra_nanousd == round(each.lost_tokens * 1125) for each in breaks.values())

    def test_another_model_breaks_the_cache(self):
        conversation = ConversationBuilder(factories.NOON)
        conversation.add_request(user("x" * 20_000), answer=[text("a")])
        conversation.add_request(user("b"), answer=[text("c")])
        conversation.target = ("vllm", "qwen3")
        conversation.add_request(user("d"), answer=[text("e")], read=0)
        factories.write_to_database(conversation.records)

        steps = self.steps(list(Exchange.objects.order_by("created")))

        assert [step.cache_break.cause_text if step.cache_break else "" for step in steps] == [
            "", "", "another model responded (vllm · qwen3)",
        ]  # fmt: skip

    def test_unknown_cache_tokens_are_no_cache_break(self, rows):
        Exchange.objects.update(cache_read_tokens=None)

        assert not any(
            step.cache_break for step in self.steps(list(Exchange.objects.order_by("created")))
        )

    def test_the_cumulative_cost_ends_at_the_sum(self, rows):
        steps = self.steps(rows)

        assert steps[-1].total_nanousd == sum(row.cost_nanousd or 0 for row in rows)

    def test_a_bar_for_each_request_links_to_it(self, root, rows):
        page = root.get(URL).content.decode()

        for row in rows:
            assert page.count(f'href="/admin/proxy/exchange/{row.pk}/change/"') == 2
        assert page.count('class="mb-gap"') == 3
        positions = [float(x) for x in re.findall(r'class="mb-bar-\w+" x="([\d.]+)%"', page)]
        widths = [
            float(w)
            for w in re.findall(r'class="mb-bar-\w+" x="[\d.]+%" y="\d+" width="([\d.]+)%"', page)
        ]
        assert all(0 <= x <= 100 for x in positions)
        assert all(x + width <= 100.01 for x, width in zip(positions, widths, strict=True))
        assert "style=" not in page


class TestConversation:
    def test_each_message_appears_once(self, root, rows):
        page = words_of(root.get(f"{URL}&tab=words"))

        for words in (
            "The tests of the tile cache fail since yesterday.",
            "I will read the log and the cache first.",
            "AssertionError: 4 == 3",
            "Yes, rewrite it from scratch.",
            "No, leave its structure; only change line 41.",
            "All three tests pass",
            "3 passed in 0.41s",
        ):
            assert page.count(words) == 1, words

    def test_the_conversation_is_in_order_and_marks_branches(self, root, rows):
        page = words_of(root.get(f"{URL}&tab=words"))
        order = [
            "side calls", "The tests of the tile cache fail", "agent explore-7",
            "web/preview.py:17", "No answer: upstream error", "Two places to change",
            "rewrite it from scratch", "branch from #8", "only change line 41", "cache break",
        ]  # fmt: skip
        positions = [page.index(words) for words in order]

        assert positions == sorted(positions)

    def test_a_result_is_beside_its_call_and_links_to_its_own_request(self, root):
        conversation = ConversationBuilder(factories.NOON)
        conversation.add_request(user("read it"), answer=[call("toolu_1", "Read", file_path="big")])
        conversation.add_request(
            user(result("toolu_1", [text("y" * 40_000)])), answer=[text("read")]
        )
        factories.write_to_database(conversation.records)
        second = Exchange.objects.order_by("created").last()

        page = root.get(f"{URL}&tab=words").content.decode()

        assert page.count("result of") == 0
        (link,) = re.findall(r'href="([^"]+/part/[^"]+)"', page)
        assert second.pk in link
        assert root.get(unescape(link)).content == b"y" * 40_000

    def test_reading_the_conversation_is_logged_and_the_timeline_is_not(self, root, rows):
        root.get(URL)
        root.get(f"{URL}&tab=words")

        (entry,) = factories.audit()
        assert (entry.object_id, entry.subject) == (rows[-1].pk, rows[-1].user)
        assert entry.detail == f"session {SESSION}, requests 1 to 13"

    def test_long_sessions_have_pages(self, root):
        conversation = ConversationBuilder(factories.NOON)
        for n in range(45):
            conversation.add_request(user(f"question {n};"), answer=[text(f"answer {n};")])
        factories.write_to_database(conversation.records)

        pages = [
            words_of(root.get(f"{URL}&tab=words{query}")) for query in ("", "&from=21", "&from=41")
        ]

        seen = [[n for n in range(45) if f"question {n};" in page] for page in pages]
        assert seen == [list(range(20)), list(range(20, 40)), list(range(40, 45))]

    def test_a_missing_transcript_is_reported(self, root, rows):
        from proxy.models import Transcript

        Transcript.objects.filter(pk=rows[2].pk).delete()

        assert "No transcript is stored" in words_of(root.get(f"{URL}&tab=words"))

    def test_a_page_takes_a_fixed_number_of_queries(self, root):
        urls = (URL, f"{URL}&tab=words")
        conversation = ConversationBuilder(factories.NOON)
        conversation.add_request(user("question"), answer=[text("answer")])
        factories.write_to_database(conversation.records)
        few = [queries(root, url) for url in urls]
        for n in range(15):
            conversation.add_request(user(f"question {n}"), answer=[text(f"answer {n}")])
        factories.write_to_database(conversation.records[1:])

        assert [queries(root, url) for url in urls] == few
        assert max(few) <= 17


def test_the_page_of_a_request_marks_only_its_new_turns(root):
    conversation = ConversationBuilder(factories.NOON)
    conversation.add_request(user("first question"), answer=[text("first answer")])
    conversation.add_request(user("second question"), answer=[text("second answer")])
    factories.write_to_database(conversation.records)
    second = Exchange.objects.order_by("created").last()

    page = root.get(f"/admin/proxy/exchange/{second.pk}/change/?from=0").content.decode()

    turns = page.split('class="mb-turns"')[1].split("<li ")[1:]
    assert ["new in this request" in turn for turn in turns] == [False, False, True, False]


def test_requests_without_tokens_are_not_unpriced(root, rows):
    page = words_of(root.get(URL))

    assert "no price" not in page
    assert "at least" not in page


class TestRoles:
    def test_users_of_the_same_session_id_see_only_their_rows(self, client, rows):
        factories.record(team="research", at=factories.NOON, opening={"session_id": SESSION})
        client.force_login(factories.staff("eve", "view_exchange", groups=("team:research",)))

        page = words_of(client.get(URL))

        assert "for 1 request " in page
        assert "tile cache" not in page

    def test_rows_without_the_transcript_permission_show_no_text(self, client, rows):
        client.force_login(factories.staff("olga", "view_exchange"))

        page = words_of(client.get(f"{URL}&tab=words"))

        assert "but not its transcripts" in page
        assert "I will read the log" not in page
        assert factories.audit() == []

    @pytest.mark.parametrize("query", ["", "?id=", "?id=nobody", "?id=%00", "?id=" + "x" * 3000])
    def test_an_unknown_session_is_404(self, root, rows, query):
        assert root.get(f"/admin/sessions/one/{query}").status_code == 404
