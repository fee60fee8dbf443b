"""Fixtures for writing the configuration through /api/v1/."""

import json

import pytest

from proxy.models import (
    AuditEntry,
    Upstream,
)
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

UPSTREAM_SECRET = "sk-upstream-0123456789abcdef"
UPSTREAM = {"name": "vllm", "dialect": "chat", "base_url": "http://vllm/v1"}
TARGETS = [{"upstream": "openai", "model": "gpt-5.2"}, {"upstream": "openai", "weight": 2}]
PRICE = {"model": "gpt-5.2", "since": "2026-01-01", "input": "1.25", "output": "10"}


@pytest.fixture
def send_as():
    """Send a request in the session of a user and return the response."""

    def send_as(user, method, route, body=None, **headers):
        client, path = ServedClient(), f"/api/v1/{route}/"
        client.force_login(user)
        text = "" if body is None else json.dumps(body)
        return client.generic(method, path, text, "application/json", headers=headers)

    return send_as


@pytest.fixture
def as_root(send_as):
    user = factories.superuser()
    return lambda method, route, body=None: send_as(user, method, route, body)


@pytest.fixture
def openai():
    fields = {"name": "openai", "dialect": "responses", "base_url": "https://api.openai.com/v1"}
    return Upstream.objects.create(**fields)


def message_of(response):
    error = response.json()
    assert error["type"] == "error"
    assert response["request-id"] == error["request_id"]
    return error["error"]["message"]


def last_log_entry():
    return AuditEntry.objects.order_by("pk").last()
