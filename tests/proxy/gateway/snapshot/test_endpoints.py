"""The URLs of an upstream's endpoints."""

from proxy.gateway.snapshot.endpoints import url_below


def test_a_path_is_appended_before_the_query_of_a_base_url():
    url = url_below("https://a.example/openai/?team=7", "/models", "2026-02-01")

    assert url == "https://a.example/openai/models?team=7&api-version=2026-02-01"
