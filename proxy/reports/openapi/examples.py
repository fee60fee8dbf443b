"""Examples of the OpenAPI document: the bodies that are written most, with the fewest fields."""

from collections.abc import Mapping
from typing import Any, Final

BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "teams_post": {"name": "platform", "retention_days": 30, "limits": {"rpm": 600}},
    "keys_post": {"team": "platform", "name": "ci", "scopes": ["messages"]},
    "own_keys_post": {"team": "platform", "name": "laptop"},
    "users_post": {"name": "ada", "email": "ada@example.com", "groups": ["member"]},
    "upstreams_post": {
        "name": "openai",
        "dialect": "responses",
        "base_url": "https://api.openai.com/v1",
        "api_key_from": {"env": "OPENAI_API_KEY"},
    },
    "models_post": {"model": "claude-*", "targets": [{"upstream": "openai", "model": "gpt-5.2"}]},
    "prices_post": {"model": "gpt-5.2", "since": "2026-01-01", "input": "1.75", "output": "14"},
    "budgets_post": {"team": "platform", "limit_usd": "500", "period": "month"},
    "webhooks_post": {"name": "chat", "url": "https://hooks.example.com/x"},
    "pauses_post": {"upstream": "openai", "message": "back at noon"},
}
"""Operation id -> the body of a request."""
