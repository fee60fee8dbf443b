"""Markdown of prompts and answers: rendered as safe HTML, with limits, and shown raw on demand."""

import pytest

from proxy.admin.transcript import markdown
from proxy.admin.transcript.markdown import MAX_CHARS, MarkdownPage
from proxy.markdown_html import CLASSES, LANGUAGES, TAGS, to_html
from tests.proxy.admin import factories
from tests.proxy.admin.factories import page
from tests.proxy.admin.hostile import PAYLOADS
from tests.proxy.admin.test_hostile import outline_of

pytestmark = pytest.mark.django_db

ANSWER = """# Findings
| file | lines |
|---|--:|
| `cache.py` | 12 |

1. **first**, see [the log](https://ci.example/log?a=1) and <https://ci.example/>
2. ![chart](https://ci.example/chart.png)

```python
def evict(): return 1
```
"""
RENDERED = (
    "<h3>Findings</h3>",
    "<th>file</th>",
    '<td class="mb-md-right">12</td>',
    "<li><strong>first</strong>, see the log ",
    '<span class="mb-target">(https://ci.example/log?a=1)</span> and https://ci.example/</li>',
    'chart <span class="mb-target">(https://ci.example/chart.png)</span>',
    '<span class="mb-hl-k">def</span>',
)
WRAPPERS = ("{}", "# {}", "- {}", "> {}", "`{}`", "**{}**", "| {} |\n|---|\n| {} |",
            "[{}](http://x.example)", "[x]({})", "![{}](http://x.example)", "![x]({})", "<{}>",
            "[x]: {}\n\n[x]", "```{}\n{}\n```", "```html\n{}\n```", "    {}")  # fmt: skip


def render(text):
    return to_html(text.encode()).decode()


def test_an_answer_renders_tables_lists_code_and_targets_of_links():
    html = render(ANSWER)

    for part in RENDERED:
        assert part in html
    assert "<a" not in html
    assert "<img" not in html


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_hostile_markdown_becomes_only_allowed_elements_without_attributes(wrapper):
    for payload in PAYLOADS:
        found = outline_of(render(wrapper.replace("{}", payload.encode(errors="replace").decode())))

        assert {tag for tag, _ in found.seen} <= TAGS, payload
        for tag, attributes in found.seen:
            allowed = (
                {"class", "tabindex"}
                if tag == "div"
                else {"class"} & {*CLASSES.get(tag, ()), "class"}
            )
            assert {*attributes} <= allowed, payload


HOSTILE = [
    *(f"```{name}\nx{' ' * 8_000}x\n```" for name in ("c", "cpp", "ini")),
]
"""Texts that need more CPU time than a page may take: up to 26 s."""


@pytest.mark.parametrize("text", HOSTILE, ids=["c", "cpp", "ini"])
def test_a_text_that_takes_too_long_is_shown_raw_and_not_tried_again(root, text, monkeypatch):
    calls = []
    run = markdown.run_each_limited
    monkeypatch.setattr(
        markdown, "run_each_limited", lambda *args: (calls.append(args[1]), run(*args))[1]
    )
    blocks = [{"type": "text", "text": each} for each in ("*first*", text, "*last*")]
    exchange = factories.record(answer=factories.answer_body(*blocks))

    first = page(root, exchange).content.decode()
    second = page(root, exchange).content.decode()

    assert "<em>first</em>" in first
    assert text[:10] in first
    for part in ("<em>first</em>", "<em>last</em>"):
        assert part in second
        assert text[:10] in second
    assert text.encode() in calls[0]
    assert text.encode() not in calls[1]


def test_the_remembered_texts_are_bounded(monkeypatch):
    monkeypatch.setattr(markdown, "_shown_raw", {})
    for number in range(markdown.MAX_REMEMBERED + 10):
        markdown._show_raw(str(number).encode())

    assert len(markdown._shown_raw) == markdown.MAX_REMEMBERED


def test_after_the_limit_of_a_page_texts_stay_raw():
    page = MarkdownPage()
    long, short = "*a*" + "b " * (MAX_CHARS // 2 - 10), "*a*" * 10
    page.add(long)
    page.add(short)

    assert page.html(long)
    assert page.html(short) == ""


def test_each_language_has_a_lexer():
    code = "".join(f"```{name}\nx = 1\n```\n" for name in LANGUAGES)

    assert render(code).count("<pre") == len(LANGUAGES)


def test_the_page_renders_markdown_and_remembers_raw(root):
    text = {"type": "text", "text": ANSWER}
    exchange = factories.record(answer=factories.answer_body(text))

    rendered = page(root, exchange).content.decode()
    raw = page(root, exchange, "?text=raw").content.decode()
    later = page(root, exchange).content.decode()
    again = page(root, exchange, "?text=rendered").content.decode()

    for part in RENDERED:
        assert part in rendered
        assert part in again
        assert part not in raw
        assert part not in later
    assert "# Findings" in raw
    assert 'href="?text=rendered"' in raw


def test_a_truncated_text_and_a_tool_result_are_shown_raw(root):
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
    exchange = factories.record(
        body=factories.request_body(messages=[
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "*r*"}]},
        ]),
        answer=factories.answer_body({"type": "text", "text": "*long* " + "x" * 20_000}),
    )  # fmt: skip

    text = page(root, exchange).content.decode()

    assert "*r*" in text
    assert "*long*" in text
    assert "<em>" not in text


def test_a_session_renders_markdown_too(root, rows):
    url = f"/admin/sessions/one/?id={rows[0].session_id}&tab=words"

    rendered = root.get(url).content.decode()
    raw = root.get(f"{url}&text=raw").content.decode()

    assert "<code>prefetch.py:41</code>" in rendered
    assert "`prefetch.py:41`" in raw
    assert f"?id={rows[0].session_id}&amp;tab=words&amp;text=rendered" in raw
