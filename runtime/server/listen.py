"""The listening socket and the TLS files, checked before anything costs time."""

from __future__ import annotations

import socket
import ssl

from rtlang.errors import ConfigError
from rtlang.runtime.server.config import ServerConfig

#: Connections that may wait to be accepted.
BACKLOG = 2048


def bind(config: ServerConfig) -> socket.socket:
    """A socket that listens. Raises ``ConfigError``, naming the port, for one that is taken."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family)
    # Ports of connections that have ended are free; one that is listened on is not.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {error}") from error
    listener.setblocking(False)
    return listener


def check_tls(config: ServerConfig) -> None:
    """Raises ``ConfigError`` for files that cannot be used; a key with a password is one."""
    if config.tls_cert is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_cert and tls_key: {error}") from error


def _no_password() -> str:
    raise ConfigError("tls_key must not have a password: nobody could type it")
