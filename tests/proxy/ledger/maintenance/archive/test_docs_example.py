"""The commands and the query of the page on capacity work as written, but for the folder."""

import re
import shlex
from pathlib import Path

import duckdb
import pytest
from django.core.management import call_command
from django.db.models import Count, Sum

from proxy.models import Exchange

from .conftest import JUNE

pytestmark = pytest.mark.django_db
PAGE = Path(__file__).parents[5] / "docs" / "guides" / "capacity.md"
FOLDER = "/srv/gateway-archive"


def blocks(language):
    text = PAGE.read_text(encoding="utf-8")
    marked = rf"{Path(__file__).name} -->\n```{language}\n(.*?)```"
    return re.findall(marked, text, re.DOTALL)


def test_the_commands_archive_and_restore_and_the_query_has_the_sums(ledger, tmp_path):
    # The page's query is about one app; it is a tag of every second request of the fixture.
    expected = list(
        Exchange.objects.order_by()
        .filter(created__gte=JUNE, created__lt="2026-08-01T00:00Z", tags__app="night%ly")
        .values_list("model_requested")
        .annotate(Count("pk"), Sum("cost_nanousd"))
    )
    (commands,), (query,) = blocks("console"), blocks("sql")
    lines = commands.replace(FOLDER, str(tmp_path / "archive")).splitlines()

    for number, line in enumerate(lines):
        program, name, *options = shlex.split(line)
        assert program == "manage.py"
        call_command(name, *options)
        assert Exchange.objects.count() == (0 if number < 3 else 5)

    sql = query.replace(FOLDER, str(tmp_path / "archive")).replace("nightly", "night%ly")
    found = duckdb.sql(sql).fetchall()
    assert [(model, count, round(usd * 1e9)) for model, count, usd in found] == expected
    assert expected[0][1] == 5
