"""A hook of MkDocs: put the source files that pages link to into the site.

A page links to a source file by its path in the repository. MkDocs knows the files below ``docs``
only, so the file is copied into the site, and the link points to the copy.
"""

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File

REPOSITORY: Final = Path(__file__).parents[2]
COPIES: Final = "source"
LINK: Final = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Replace the links to files outside of ``docs`` by links to their copies."""
    folder = posixpath.dirname(page.file.src_uri)

    def link_to_copy(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, found["path"]))
        if path.startswith(("docs/", "..")) or not (REPOSITORY / path).is_file():
            return found[0]  # MkDocs checks it
        copy = f"{COPIES}/{path}.txt"  # browsers show text, but download a program
        if files.get_file_from_path(copy) is None:
            source = str(REPOSITORY / path)
            files.append(File.generated(config, copy, abs_src_path=source))
        return f"]({posixpath.relpath(copy, folder or '.')}{found['anchor'] or ''})"

    return LINK.sub(link_to_copy, markdown)
