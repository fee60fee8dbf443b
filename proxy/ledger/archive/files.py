"""Where the files of archived months are: a folder, or a bucket with Amazon's S3 protocol.

A bucket is read through copies in the data directory, of which the digest is compared. botocore
finds credentials, region and ``AWS_ENDPOINT_URL_S3``.
"""

import hashlib
import importlib
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from proxy.conf import conf
from proxy.secrets import ConfigError

CHUNK: Final = 2**20
BUCKET_SCHEME: Final = "s3://"
CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 60


class ArchiveError(Exception):
    """A month cannot be archived, or its file is missing or damaged."""


def check_location(location: str) -> str:
    """Return the location as it is stored. Raise ConfigError if it is invalid.

    A folder in the data directory is stored relative to it, because the directory may be moved.
    Other folders are stored as absolute paths.
    """
    if location.startswith(BUCKET_SCHEME):
        if not urlsplit(location).netloc:
            raise ConfigError(f"{location!r} names no bucket; write s3://bucket/prefix")
        return location.rstrip("/")
    if "://" in location:
        raise ConfigError(f"{location!r} is neither a folder nor s3://bucket/prefix")
    folder, data = Path(location).absolute(), conf.data_dir.absolute()
    return str(folder.relative_to(data) if folder.is_relative_to(data) else folder)


def address(location: str, name: str = "") -> str:
    """Return the absolute path or the URL of a stored file, or of the location itself."""
    if location.startswith(BUCKET_SCHEME):
        return f"{location}/{name}" if name else location
    return str(_folder(location) / name)


def _folder(location: str) -> Path:
    """Return the folder of a stored location, which is relative in the data directory."""
    return conf.data_dir.absolute() / location


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def put(location: str, path: Path) -> None:
    """Store a file durably at the location under its own name; replace a file of that name."""
    if location.startswith(BUCKET_SCHEME):
        with _s3_errors(location), path.open("rb") as body:
            s3_client().put_object(**_object(location, path.name), Body=body)
    else:
        _put_in_folder(_folder(location), path)


def local_path(location: str, name: str, sha256: str) -> Path:
    """Return the path of a stored file; one of a bucket is copied to the data directory once.

    Raise ArchiveError if the file is missing, or if a copy has another digest.
    """
    if not location.startswith(BUCKET_SCHEME):
        path = _folder(location) / name
        if not path.is_file():
            raise ArchiveError(f"the archived file {path} is missing")
        return path
    copy = conf.data_dir / "archive-copies" / f"{sha256}.parquet"
    if not copy.is_file():
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = copy.with_name(f"{copy.name}.{os.getpid()}.part")
        try:
            part.touch(mode=0o600)
            with part.open("wb") as file:
                file.writelines(_chunks(location, name))
            if sha256_of(part) != sha256:
                raise ArchiveError(f"{location}/{name} differs from the file that was archived")
            part.replace(copy)
        finally:
            part.unlink(missing_ok=True)
    return copy


def stored_sha256(location: str, name: str) -> str:
    """Read a stored file back and return its digest; "" if it is missing."""
    if not location.startswith(BUCKET_SCHEME):
        path = _folder(location) / name
        return sha256_of(path) if path.is_file() else ""
    digest = hashlib.sha256()
    try:
        for chunk in _chunks(location, name):
            digest.update(chunk)
    except ArchiveError:
        return ""
    return digest.hexdigest()


def remove(location: str, name: str) -> None:
    """Delete a stored file, if it exists; a bucket with versions keeps the deleted object."""
    if location.startswith(BUCKET_SCHEME):
        with _s3_errors(location):
            s3_client().delete_object(**_object(location, name))
    else:
        (_folder(location) / name).unlink(missing_ok=True)


def remove_copies(kept: Collection[str]) -> None:
    """Delete the local copies of files in buckets, except those with a digest in ``kept``."""
    for copy in (conf.data_dir / "archive-copies").glob("*.parquet"):
        if copy.stem not in kept:
            copy.unlink(missing_ok=True)


def _put_in_folder(folder: Path, path: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = folder / f".{path.name}.part"
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    with path.open("rb") as source, part.open("wb") as target:
        shutil.copyfileobj(source, target, CHUNK)
        target.flush()
        os.fsync(target.fileno())
    part.replace(folder / path.name)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)  # so that the new name survives a power failure
    finally:
        os.close(handle)


@lru_cache
def s3_client() -> Any:
    """Return the process's S3 client. Raise ConfigError with the command that installs botocore."""
    try:
        session = importlib.import_module("botocore.session").get_session()
        config = importlib.import_module("botocore.config").Config(
            connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S
        )
    except ImportError:
        raise ConfigError("s3:// needs botocore: pip install 'messages-bridge[aws]'") from None
    return session.create_client("s3", config=config)


def _object(location: str, name: str) -> dict[str, str]:
    bucket, _, prefix = location.removeprefix(BUCKET_SCHEME).partition("/")
    return {"Bucket": bucket, "Key": f"{prefix}/{name}" if prefix else name}


@contextmanager
def _s3_errors(location: str) -> Iterator[None]:
    """Raise the errors of botocore as ArchiveError. They contain no credentials."""
    s3_client()  # if botocore is missing, this names the command that installs it
    errors = importlib.import_module("botocore.exceptions")
    try:
        yield
    except (errors.BotoCoreError, errors.ClientError) as exc:
        raise ArchiveError(f"{location}: {exc}") from None


def _chunks(location: str, name: str) -> Iterator[bytes]:
    with _s3_errors(location):
        yield from s3_client().get_object(**_object(location, name))["Body"].iter_chunks(CHUNK)
