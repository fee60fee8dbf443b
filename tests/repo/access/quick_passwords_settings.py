"""The settings of a gateway whose password hashes take no time; the standard ones take half a second."""

from bridge_project.settings import *  # noqa: F403 - settings are extended by star, Django's way

PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.MD5PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",  # of the admin in a copied ledger
]
