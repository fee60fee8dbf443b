"""Build the documentation as a site: every link and anchor has a target, nothing is loaded from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXTERNAL = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)=["']?(https?:)?//""")


@pytest.fixture(scope="module")
def site(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run = subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=repository, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return folder


def test_the_site_has_every_page(repository: Path, site: Path):
    pages = {
        path.relative_to(repository / "docs").with_suffix("")
        for path in (repository / "docs").rglob("*.md")
    }

    assert {page for page in pages if not is_built(site, page)} == set()


def is_built(site: Path, page: Path) -> bool:
    folder = page.parent if page.name == "index" else page
    return (site / folder / "index.html").exists()


def test_a_link_to_source_code_opens_its_copy(site: Path):
    page = (site / "internals/index.html").read_text(encoding="utf-8")

    links = re.findall(r'href="(\.\./source/[^"#]+)', page)
    assert len(links) > 10
    assert all((site / "internals" / link).is_file() for link in links)


def test_no_page_loads_anything_from_another_host(site: Path):
    pages = list(site.rglob("*.html"))

    assert len(pages) > 30
    loaded = {path.name for path in pages if EXTERNAL.search(path.read_text(encoding="utf-8"))}
    assert loaded == set()
