"""What is kept of PDFs that were read; tests/e2e/upstreams/test_documents.py reads them."""

from proxy.gateway.upstream import documents
from proxy.gateway.upstream.documents import PdfText, PdfTexts

DIGEST = b"d" * 32


def texts_at(time: list[float]) -> PdfTexts:
    return PdfTexts(clock=lambda: time[0])


def test_teams_share_nothing():
    texts = PdfTexts()

    texts.add(1, DIGEST, PdfText("marigold"))

    assert texts.get(1, DIGEST) == PdfText("marigold")
    assert texts.get(2, DIGEST) is None


def test_a_document_that_took_too_long_is_read_again_later():
    now = [100.0]
    texts = texts_at(now)
    slow = PdfText("", "it takes too long to read", until=700.0)

    texts.add(1, DIGEST, slow)

    assert texts.get(1, DIGEST) is slow
    now[0] = 701.0
    assert texts.get(1, DIGEST) is None


def test_a_team_keeps_its_newest_texts_within_its_characters():
    texts = PdfTexts()
    long = "a" * 300_000
    digests = [bytes([number]) for number in range(5)]

    for digest in digests:
        texts.add(1, digest, PdfText(long))
    texts.add(2, DIGEST, PdfText(long))

    assert [texts.get(1, digest) is not None for digest in digests] == [False] * 2 + [True] * 3
    assert texts.get(2, DIGEST) is not None


def test_the_teams_that_were_silent_longest_are_forgotten():
    texts = PdfTexts()

    for team in range(documents.MAX_TEAMS + 1):
        texts.add(team, DIGEST, PdfText("marigold"))
        texts.get(0, DIGEST)

    assert texts.get(0, DIGEST) is not None
    assert texts.get(1, DIGEST) is None
