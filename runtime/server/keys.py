"""API keys: who may call, kept as hashes; the file is read again when it changes."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import tempfile
from typing import Any

import msgspec

from rtlang.errors import ConfigError, NotAuthenticated
from rtlang.runtime.server.config import ServerConfig

logger = logging.getLogger(__name__)

#: Names stand in logs and in the labels of metrics.
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}")
LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency")
#: The key in the environment is an operator's, of this name.
ENVIRONMENT_NAME = "environment"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks. Limits: None is none; ``salt``: keys of another salt share no cached token."""

    name: str = ""
    operator: bool = True  # may use the control endpoints and see others' requests
    salt: str = ""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None

    @property
    def is_limited(self) -> bool:
        return any(getattr(self, limit) is not None for limit in LIMITS)


#: Everybody, where no keys are configured and no limits.
ANYBODY = Principal()


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key of the file. ``hash``: see ``KeyFile.hashed``; the others: see ``Principal``."""

    name: str
    hash: str
    operator: bool = False
    salt: str = ""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hash_salt`` makes equal keys of two files differ in their hashes."""

    hash_salt: str = ""
    keys: tuple[KeyEntry, ...] = ()

    @classmethod
    def empty(cls) -> KeyFile:
        return cls(hash_salt=secrets.token_hex(16))

    def hashed(self, key: str) -> str:
        """SHA-256 of the salt and the key: keys are long and random, so no slow hash is needed."""
        return hashlib.sha256((self.hash_salt + key).encode()).hexdigest()

    def having(self, entry: KeyEntry) -> KeyFile:
        """Raises ``ConfigError`` for a wrong entry."""
        return _checked(msgspec.structs.replace(self, keys=(*self.keys, entry)))

    def lacking(self, name: str) -> KeyFile:
        left = tuple(entry for entry in self.keys if entry.name != name)
        if len(left) == len(self.keys):
            raise ConfigError(f"there is no key named {name!r}")
        return msgspec.structs.replace(self, keys=left)


def new_key() -> str:
    return "rtk-" + secrets.token_urlsafe(32)


def read_key_file(path: str) -> KeyFile:
    """Raises ``ConfigError`` that says what is wrong with it."""
    try:
        with open(path, "rb") as file:
            found = msgspec.json.decode(file.read(), type=KeyFile)
    except OSError as error:
        raise ConfigError(f"API keys: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"API keys in {path}: {error}") from error
    return _checked(found, f" in {path}")


def write_key_file(path: str, keys: KeyFile) -> None:
    """At once or not at all; only the owner may read a new file."""
    text = json.dumps(msgspec.to_builtins(keys), indent=2) + "\n"
    folder = os.path.dirname(os.path.abspath(path))
    try:
        mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o600
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".keys-")  # made with 0600
        with os.fdopen(handle, "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f"API keys: {error}") from error


def _checked(found: KeyFile, where: str = "") -> KeyFile:
    names = [entry.name for entry in found.keys]
    if ENVIRONMENT_NAME in names:
        raise ConfigError(f"API keys{where}: {ENVIRONMENT_NAME!r} is the name of another key")
    for entry in found.keys:
        if not _NAME.fullmatch(entry.name):
            raise ConfigError(
                f"API keys{where}: a name has 1 to 64 of A-Z a-z 0-9 _ . @ -, not {entry.name!r}"
            )
        if names.count(entry.name) > 1:
            raise ConfigError(f"API keys{where}: two are named {entry.name!r}")
        if not _HASH.fullmatch(entry.hash):
            raise ConfigError(f"API keys{where}: the hash of {entry.name!r} is no SHA-256")
        for limit in LIMITS:
            value = getattr(entry, limit)
            if value is not None and value < 1:
                raise ConfigError(f"API keys{where}: {limit} of {entry.name!r} is below 1")
    return found


class KeyStore:
    """Finds who asks. Without a file and without a key in the environment, that is anybody.

    A configured file without keys lets nobody in. Raises ``ConfigError`` for a file that cannot
    be read; a later one that cannot leaves the keys as they were, and the log says so once.
    """

    def __init__(self, config: ServerConfig | None = None, environment_key: str = "") -> None:
        config = config or ServerConfig()
        self._path = config.api_key_file
        self._defaults: dict[str, Any] = {limit: getattr(config, limit) for limit in LIMITS}
        self._anybody = Principal(**self._defaults)
        self._environment_key = environment_key
        self._file = KeyFile.empty()
        self._stamp: tuple[int, ...] | None = None
        self._known: list[tuple[str, Principal]] = []
        if self._path is not None:
            self._stamp = _stamp(self._path)
            self._file = read_key_file(self._path)
        self._use(self._file)

    @property
    def is_open(self) -> bool:
        """Whether anybody may call."""
        return self._path is None and not self._environment_key

    def find(self, secret: str | None) -> Principal:
        """Raises ``NotAuthenticated``."""
        if self.is_open:
            return self._anybody
        if not secret:
            raise NotAuthenticated("an API key is needed: Authorization: Bearer KEY, or x-api-key")
        self._refresh()
        # Surrogates come from header bytes that are no UTF-8; no key has any.
        hashed = self._file.hashed(secret.encode("utf-8", "replace").decode())
        found: Principal | None = None
        for known, principal in self._known:  # all of them: the time tells nothing about a hash
            if hmac.compare_digest(known, hashed):
                found = principal
        if found is None:
            raise NotAuthenticated("this API key is not known")
        return found

    def _refresh(self) -> None:
        if self._path is None:
            return
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._use(read_key_file(self._path))
        except ConfigError as error:
            logger.error("%s; the keys stay as they were", error)
        else:
            logger.info("read %d API keys", len(self._file.keys))

    def _use(self, file: KeyFile) -> None:
        self._file = file
        self._known = [(entry.hash, self._principal(entry)) for entry in file.keys]
        if self._environment_key:
            operator = Principal(name=ENVIRONMENT_NAME, **self._defaults)
            self._known.append((file.hashed(self._environment_key), operator))

    def _principal(self, entry: KeyEntry) -> Principal:
        own = {limit: getattr(entry, limit) for limit in LIMITS}
        limits = {n: self._defaults[n] if value is None else value for n, value in own.items()}
        return Principal(name=entry.name, operator=entry.operator, salt=entry.salt, **limits)


def _stamp(path: str) -> tuple[int, ...]:
    """Changes when the file does; empty where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def environment_key() -> str:
    """The operator's key that RTLANG_API_KEY holds; a secret, so it may stand there."""
    return os.environ.get("RTLANG_API_KEY", "")
