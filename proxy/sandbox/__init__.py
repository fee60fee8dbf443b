"""The sandbox upstream: a scripted OpenAI server on loopback, for an answer without an account.

It is no model and says so in all that it writes. ``script`` decides what to say, ``responses`` and
``chat`` say it in one dialect each, ``server`` puts it on a port.
"""

from typing import Final

UPSTREAMS: Final = {"sandbox": "responses", "sandbox-chat": "chat"}
"""The names under which a first start enters it, with the dialect of each."""
