"""Sessions: found by day and cost, drawn as they went, read as one conversation, exported."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from proxy.admin.session_shape import broken_pairs, lanes_of, steps_of
from proxy.models import Exchange
from proxy.record.additions import additions
from tests.proxy.admin import cast
from tests.proxy.admin.session_cast import SESSION, Talk, call, result, text, user

pytestmark = pytest.mark.django_db

URL = f"/admin/sessions/one/?id={SESSION}"


def queries(client, url):
    """How many queries a page takes, when it is not the first one."""
    client.get(url)
    with CaptureQueriesContext(connection) as taken:
        assert client.get(url).status_code == 200
    return len(taken)


def words_of(answer):
    """The page's text, tags left out, spaces as one."""
    main = answer.content.decode().split("<article", 1)[-1]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", main)).split())


class TestTheList:
    def dear(self, at, session_id, output):
        usage = {"input": 10, "output": output, "cache_read": 0, "source": "reported"}
        return cast.record(
            at=at, opening={"session_id": session_id}, closing={"usage": usage},
            body=cast.request_body(messages=[user(f"words of {session_id}")]),
        )  # fmt: skip

    def shown(self, client, query):
        page = client.get(f"/admin/sessions/{query}").content.decode()
        return re.findall(r"words of ([a-z-]+)", page)

    def test_yesterdays_most_expensive_session_is_two_clicks_away(self, root):
        cast.price()
        yesterday = now() - timedelta(days=1)
        self.dear(yesterday, "cheap", 10)
        self.dear(yesterday, "dear", 90_000)
        self.dear(yesterday, "middling", 5_000)
        self.dear(now(), "today-and-dearer", 500_000)

        assert self.shown(root, "")[0] == "today-and-dearer"
        assert self.shown(root, "?span=yesterday&sort=cost") == ["dear", "middling", "cheap"]
        assert self.shown(root, f"?day={yesterday:%Y-%m-%d}&sort=cost")[0] == "dear"

    def test_a_session_is_one_row_with_what_it_amounts_to(self, root, rows):
        page = root.get("/admin/sessions/?day=2026-11-20").content.decode()

        assert page.count("mb-session-words") == 1
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

        assert ("mb-session-words" in page) is found

    @pytest.mark.parametrize(
        "query",
        ["?day=nonsense", "?day=9999-12-31", "?span=x&sort=y&page=-1", "?page=9999", "?q=%00"],
    )
    def test_nonsense_does_no_harm(self, root, rows, query):
        assert root.get(f"/admin/sessions/{query}").status_code == 200

    def test_pages_meet(self, root):
        for n in range(55):
            self.dear(
                cast.NOON + timedelta(minutes=n), f"s-{chr(97 + n // 26)}{chr(97 + n % 26)}", 10
            )

        first = self.shown(root, "?day=2026-11-20")
        second = self.shown(root, "?day=2026-11-20&page=1")

        assert (len(first), len(second)) == (50, 5)
        assert not {*first} & {*second}

    def test_only_the_own_rows_are_added_up(self, client, rows):
        cast.record(team="research", at=cast.NOON, opening={"session_id": SESSION, "user": "cleo"})
        client.force_login(cast.staff("cleo", groups=("member",)))

        page = client.get("/admin/sessions/?day=2026-11-20").content.decode()

        assert "tile cache" not in page
        assert "research / ci" in page

    @pytest.mark.parametrize("sort", ["newest", "cost"])
    def test_a_page_takes_a_fixed_number_of_queries(self, root, sort):
        url = f"/admin/sessions/?day=2026-11-20&sort={sort}"
        self.dear(cast.NOON, "one", 10)
        few = queries(root, url)
        for n in range(20):
            self.dear(cast.NOON, f"s-{chr(97 + n)}", 10)

        assert queries(root, url) == few <= 14


class TestTheShape:
    def steps(self, rows):
        broken = [row for row in rows if row.pk in broken_pairs(rows)]
        found = additions(broken, words=False)
        return steps_of(rows, {name: one.setting for name, one in found.items()})

    def test_lanes_are_the_talk_its_agents_its_branches_and_side_calls(self, rows):
        lanes = lanes_of(self.steps(rows))

        assert [(lane.label, len(lane.rows)) for lane in lanes] == [
            ("main", 6), ("agent explore-7", 2), ("branch from #8", 4), ("side calls", 1),
        ]  # fmt: skip

    def test_what_failed_is_repeated_on_its_lane(self, rows):
        steps = self.steps(rows)

        assert steps[5].row.outcome == "upstream_error"
        assert steps[6].lane.kind == "main"
        assert steps[6].follows == steps[5].follows

    def test_a_branch_says_where_somebody_went_back_to(self, rows):
        turned = [step for step in self.steps(rows) if step.turned]

        assert [(step.number, step.follows) for step in turned] == [(10, 8)]

    def test_each_break_of_the_cache_says_why(self, rows):
        broke = {step.number: step.broke for step in self.steps(rows) if step.broke}

        assert {number: one.because for number, one in broke.items()} == {
            11: "the tools changed",
            13: "13 minutes passed, a cache commonly lives 5",
        }
        # 1.25 less 0.125 dollars a million, for each token that was there and was not read.
        assert all(one.nanousd == round(one.lost_tokens * 1125) for one in broke.values())

    def test_another_model_breaks_the_cache(self):
        talk = Talk(cast.NOON)
        talk.ask(user("x" * 20_000), answer=[text("a")])
        talk.ask(user("b"), answer=[text("c")])
        talk.target = ("vllm", "qwen3")
        talk.ask(user("d"), answer=[text("e")], read=0)
        cast.post(talk.said)

        steps = self.steps(list(Exchange.objects.order_by("created")))

        assert [step.broke.because if step.broke else "" for step in steps] == [
            "", "", "another model answered (vllm · qwen3)",
        ]  # fmt: skip

    def test_unknown_cache_figures_say_nothing(self, rows):
        Exchange.objects.update(cache_read_tokens=None)

        assert not any(
            step.broke for step in self.steps(list(Exchange.objects.order_by("created")))
        )

    def test_the_running_cost_ends_at_the_sum(self, rows):
        steps = self.steps(rows)

        assert steps[-1].total_nanousd == sum(row.cost_nanousd or 0 for row in rows)

    def test_a_bar_for_each_request_leads_to_it(self, root, rows):
        page = root.get(URL).content.decode()

        for row in rows:
            assert page.count(f'href="/admin/proxy/exchange/{row.pk}/change/"') == 2
        assert page.count('class="mb-gap"') == 3
        places = [float(x) for x in re.findall(r'class="mb-bar-\w+" x="([\d.]+)%"', page)]
        widths = [
            float(w)
            for w in re.findall(r'class="mb-bar-\w+" x="[\d.]+%" y="\d+" width="([\d.]+)%"', page)
        ]
        assert all(0 <= x <= 100 for x in places)
        assert all(x + width <= 100.01 for x, width in zip(places, widths, strict=True))
        assert "style=" not in page


class TestTheConversation:
    def test_nothing_is_said_twice(self, root, rows):
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

    def test_it_reads_in_order_and_says_where_it_turns(self, root, rows):
        page = words_of(root.get(f"{URL}&tab=words"))
        order = [
            "side calls", "The tests of the tile cache fail", "agent explore-7",
            "web/preview.py:17", "There was none: upstream error", "Two places to change",
            "rewrite it from scratch", "went back to #8", "only change line 41", "cache broke",
        ]  # fmt: skip
        places = [page.index(words) for words in order]

        assert places == sorted(places)

    def test_a_result_stands_beside_its_call_and_leads_to_its_own_request(self, root):
        talk = Talk(cast.NOON)
        talk.ask(user("read it"), answer=[call("toolu_1", "Read", file_path="big")])
        talk.ask(user(result("toolu_1", [text("y" * 40_000)])), answer=[text("read")])
        cast.post(talk.said)
        second = Exchange.objects.order_by("created").last()

        page = root.get(f"{URL}&tab=words").content.decode()

        assert page.count("result of") == 0
        (link,) = re.findall(r'href="([^"]+/part/[^"]+)"', page)
        assert second.pk in link
        assert root.get(unescape(link)).content == b"y" * 40_000

    def test_a_reading_is_noted_and_the_course_is_none(self, root, rows):
        root.get(URL)
        root.get(f"{URL}&tab=words")

        (entry,) = LogEntry.objects.all()
        assert entry.object_id == rows[-1].pk
        assert entry.change_message == f"Read the session {SESSION}, requests 1 to 13."

    def test_long_sessions_come_in_pages(self, root):
        talk = Talk(cast.NOON)
        for n in range(45):
            talk.ask(user(f"question {n};"), answer=[text(f"answer {n};")])
        cast.post(talk.said)

        pages = [
            words_of(root.get(f"{URL}&tab=words{query}")) for query in ("", "&from=21", "&from=41")
        ]

        seen = [[n for n in range(45) if f"question {n};" in page] for page in pages]
        assert seen == [list(range(20)), list(range(20, 40)), list(range(40, 45))]

    def test_what_is_not_kept_is_said(self, root, rows):
        from proxy.models import Transcript

        Transcript.objects.filter(pk=rows[2].pk).delete()

        assert "Nothing of it is kept" in words_of(root.get(f"{URL}&tab=words"))

    def test_a_page_takes_a_fixed_number_of_queries(self, root):
        urls = (URL, f"{URL}&tab=words")
        talk = Talk(cast.NOON)
        talk.ask(user("question"), answer=[text("answer")])
        cast.post(talk.said)
        few = [queries(root, url) for url in urls]
        for n in range(15):
            talk.ask(user(f"question {n}"), answer=[text(f"answer {n}")])
        cast.post(talk.said[1:])

        assert [queries(root, url) for url in urls] == few
        assert max(few) <= 12


def test_on_a_requests_own_page_only_the_new_turns_are_called_new(root):
    talk = Talk(cast.NOON)
    talk.ask(user("first question"), answer=[text("first answer")])
    talk.ask(user("second question"), answer=[text("second answer")])
    cast.post(talk.said)
    second = Exchange.objects.order_by("created").last()

    page = root.get(f"/admin/proxy/exchange/{second.pk}/change/?from=0").content.decode()

    turns = page.split('class="mb-turns"')[1].split("<li ")[1:]
    assert ["new in this request" in turn for turn in turns] == [False, False, True, False]


def test_what_used_nothing_is_not_called_unpriced(root, rows):
    page = words_of(root.get(URL))

    assert "no price" not in page
    assert "at least" not in page


class TestRoles:
    def test_whoever_may_not_see_a_row_finds_no_session(self, client, rows):
        client.force_login(cast.staff("eve", "view_exchange", groups=("team:research",)))

        assert client.get(URL).status_code == 404
        assert client.get(f"/admin/sessions/export/?id={SESSION}").status_code == 403

    def test_a_stranger_with_the_same_id_sees_the_own_part(self, client, rows):
        cast.record(team="research", at=cast.NOON, opening={"session_id": SESSION})
        client.force_login(cast.staff("eve", "view_exchange", groups=("team:research",)))

        page = words_of(client.get(URL))

        assert "for 1 request " in page
        assert "tile cache" not in page

    def test_seeing_rows_is_not_reading_words(self, client, rows):
        client.force_login(cast.staff("olga", "view_exchange"))

        page = words_of(client.get(f"{URL}&tab=words"))

        assert "not what was said" in page
        assert "I will read the log" not in page
        assert not LogEntry.objects.exists()

    @pytest.mark.parametrize("query", ["", "?id=", "?id=nobody", "?id=%00", "?id=" + "x" * 3000])
    def test_what_is_no_session_is_404(self, root, rows, query):
        assert root.get(f"/admin/sessions/one/{query}").status_code == 404
