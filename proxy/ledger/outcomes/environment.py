"""Find the repository and the branch of a session in the agent's prompt.

Claude Code, and agents with the same prompt, state the working directory in a list of facts about
the environment, and the branch in the git status at the start of the conversation.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from proxy.ledger.transcripts.body_parts import Piece, decode_json

DIRECTORY: Final = re.compile(
    r"^[ \t]*(?:- )?(?:Primary )?working directory:[ \t]*(\S.*?)[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
IS_REPOSITORY: Final = re.compile(
    r"Is (?:the )?(?:a |directory a )?git repo(?:sitory)?:[ \t]*(?:yes|true)\b", re.IGNORECASE
)
BRANCH: Final = re.compile(r"^[ \t]*Current branch:[ \t]*(\S+)[ \t]*$", re.MULTILINE)
MARKS: Final = (b"orking directory:", b"Current branch:")
"""A piece of the prompt without one of these texts is not decoded."""
MAX_PIECE: Final = 500_000  # bytes; a larger piece is not a prompt with facts
FIRST_MESSAGES: Final = 3  # newer versions send the facts in the first messages
MAX_CACHED: Final = 1024
MAX_NAME: Final = 200


class Environment(NamedTuple):
    """The name of the repository's folder, and the branch; blank: the prompt does not say it."""

    repository: str = ""
    branch: str = ""


_by_digest: Final[dict[bytes, Environment]] = {}


def environment_of(system: Sequence[Piece], messages: Sequence[Piece]) -> Environment:
    """Return the repository and branch that the prompt states; the first statement wins.

    Only the last component of the working directory is used, as paths contain names of people.
    """
    repository = branch = ""
    for piece in (*system, *messages[:FIRST_MESSAGES]):
        found = _of_piece(piece)
        repository, branch = repository or found.repository, branch or found.branch
    return Environment(repository, branch)


def _of_piece(piece: Piece) -> Environment:
    if len(piece.text) > MAX_PIECE or not any(mark in piece.text for mark in MARKS):
        return Environment()
    found = _by_digest.get(piece.digest)
    if found is None:
        if len(_by_digest) >= MAX_CACHED:
            _by_digest.clear()
        text = "\n".join(_texts(decode_json(piece.text)))
        found = _by_digest[piece.digest] = _of_text(text)
    return found


def _of_text(text: str) -> Environment:
    branch, directory = BRANCH.search(text), DIRECTORY.search(text)
    is_repository = branch is not None or IS_REPOSITORY.search(text) is not None
    name = ""
    if directory is not None and is_repository:
        name = re.split(r"[/\\]", directory[1].rstrip("/\\"))[-1]
    return Environment(name[:MAX_NAME], branch[1][:MAX_NAME] if branch else "")


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of a system prompt, a block or a message."""
    match value:
        case str():
            yield value
        case {"content": content}:
            yield from _texts(content)
        case {"text": str(text)}:
            yield text
        case list():
            for each in value:
                yield from _texts(each)
