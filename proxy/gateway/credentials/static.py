"""A fixed API key, from the environment, the database or a file that may be replaced."""

from collections.abc import Callable, Mapping

from proxy.secrets import ConfigError

from .credential import Credential, CredentialError


class StaticKey:
    """The upstream's ``api_key``. Each fetch reads its file again."""

    def __init__(
        self, read: Callable[[], str], as_headers: Callable[[str], Mapping[str, str]], origin: str
    ) -> None:
        self._read = read
        self._as_headers = as_headers
        self._origin = origin

    def fetch(self) -> Credential:
        try:
            key = self._read()
        except ConfigError as fault:
            raise CredentialError(str(fault)) from None
        return Credential(headers=self._as_headers(key), secret=key.encode(), origin=self._origin)
