#!/usr/bin/env bash
# Stream one response. The gateway's address and your key are in the environment.
set -eu

curl -fsSN "$ANTHROPIC_BASE_URL/v1/messages" \
  -H "authorization: Bearer $ANTHROPIC_AUTH_TOKEN" \
  -H "content-type: application/json" \
  -d '{"model": "claude-sonnet-5-5", "max_tokens": 1024, "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'
