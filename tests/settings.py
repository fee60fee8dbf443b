"""The project's settings with a temporary data directory and a new secret key.

A process that sets BRIDGE_DATA_DIR (the gateway under test) uses the standard settings.
"""

import atexit
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from bridge_project.settings import *  # noqa: F403  (settings are extended by star, Django's way)
from bridge_project.settings import ALLOWED_HOSTS, DATABASES, LOGGING

if "BRIDGE_DATA_DIR" not in os.environ:
    DATA_DIR = Path(tempfile.mkdtemp(prefix="bridge-tests-"))
    atexit.register(shutil.rmtree, DATA_DIR, ignore_errors=True)
    SECRET_KEY = secrets.token_urlsafe(48)
    SECRET_KEY_PATH = DATA_DIR / "secret_key"
    ALLOWED_HOSTS = [*ALLOWED_HOSTS, "testserver"]
    PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick logins
    if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
        # A file instead of memory, because the drainer writes from another thread.
        DATABASES["default"]["NAME"] = str(DATA_DIR / "ledger.sqlite3")
        DATABASES["default"]["TEST"] = {"NAME": str(DATA_DIR / "test-ledger.sqlite3")}
# Find a static file when it is requested: each client of a test would read all of them at its start.
WHITENOISE_AUTOREFRESH = True
BANNER_FRESH_S = 0  # so that a page makes the same queries each time
REDIS_TIMEOUT_S = 10
SHED_LAG_S = 3600  # a slow machine must not cause load shedding
# A test must not get a line that counts the same line of an earlier test.
LOGGING["handlers"]["stderr"]["filters"].remove("repeated")
