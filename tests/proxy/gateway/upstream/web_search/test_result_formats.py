"""Results of search endpoints, which are text of strangers."""

from proxy.gateway.web_search import FORMATS, is_permitted, read_results
from tests.for_each import for_each
from translator.web_search.results import tool_result

PAGE = {"url": "https://a.example/x", "title": "A"}


@for_each(
    ("name", "response"),
    [
        ("searxng", {"results": [{**PAGE, "content": "text", "publishedDate": "2026-01-02"}]}),
        (
            "brave",
            {"web": {"results": [{**PAGE, "description": "text", "page_age": "2026-01-02"}]}},
        ),
    ],
)
def test_each_format_gives_the_same_result(name: str, response):
    (found,) = read_results(response, FORMATS[name], {}, 5)

    assert (found["url"], found["title"], found["page_age"]) == (
        "https://a.example/x", "A", "2026-01-02",
    )  # fmt: skip
    shown = tool_result({"tool_use_id": "srvtoolu_1", "content": [found]})
    assert shown["content"].endswith("\ntext")


@for_each("response", [None, [], {"results": 1}, {"results": [1, {"url": 2}]}])
def test_a_response_of_another_shape_has_no_results(response):
    assert read_results(response, FORMATS["searxng"], {}, 5) == []


def test_number_and_length_of_results_are_limited():
    long = {"url": "https://a.example", "title": "t" * 9_000, "content": "c" * 9_000}
    too_long = {"url": "https://a.example/" + "u" * 9_000}

    found = read_results({"results": [too_long, *[long] * 9]}, FORMATS["searxng"], {}, 3)

    assert len(found) == 3
    shown = tool_result({"tool_use_id": "srvtoolu_1", "content": found})
    assert len(shown["content"]) < 3 * 2_500


@for_each(
    ("url", "permitted"),
    [
        ("https://docs.example.com/guide/a", True),
        ("https://DOCS.example.com./guide", True),
        ("https://sub.docs.example.com/guide", True),
        ("https://docs.example.com/other", False),
        ("https://docs.example.com/guides", False),
        ("https://evildocs.example.com.evil.example/guide", False),
        ("https://docs.example.com@evil.example/guide", False),
        ("ftp://docs.example.com/guide", False),
        ("https://[broken", False),
    ],
)
def test_only_pages_of_allowed_sites_are_permitted(url: str, permitted: bool):
    tool = {"allowed_domains": ["docs.example.com/guide"]}

    assert is_permitted(url, tool) is permitted


def test_pages_of_blocked_sites_are_not_permitted():
    tool = {"blocked_domains": ["example.com"]}

    assert not is_permitted("https://a.example.com", tool)
    assert is_permitted("https://notexample.com", tool)
