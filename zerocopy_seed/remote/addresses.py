"""Addresses of learners, and what gRPC must be told for them. Imports no JAX and no gRPC.

Both ends send pings while a stream is open, so that a peer that is frozen or cut off is noticed within some
15 s. gRPC answers them in threads of its own, however long an environment's step or a compilation takes.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import pathlib
import socket

from zerocopy_envs.errors import UserError

PING_EVERY_MS = 10_000
PING_TIMEOUT_MS = 5_000

_MOST_CONNECTIONS = 2**30  # gRPC ends the process at 2^31 - 1
_STREAMS_PER_CONNECTION = 8  # an actor has one; further ones wait
_HANDSHAKE_TIMEOUT_MS = 10_000  # for whoever connects and says nothing
_IDLE_MS = 30_000  # for whoever says hello and calls nothing: a place is others' then

_FORMS = "HOST:PORT, [IPv6]:PORT or unix:PATH"
_LONGEST_SOCKET_PATH = 107  # of sockaddr_un on Linux, less its closing 0

Options = list[tuple[str, int]]


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a learner listens.

    Attributes:
      text: as gRPC takes it and people write it.
      host: name or number without brackets; "" for a Unix socket.
      port: 0 for a Unix socket, and where the system shall choose.
      path: of a Unix socket, else "".
    """

    text: str
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_local(self) -> bool:
        """A Unix socket or this machine's own address, seen by who joins: no proxy can stand between."""
        number = self._number
        return bool(self.path) or self.is_loopback or (number is not None and number.is_unspecified)

    @property
    def is_loopback(self) -> bool:
        """No other machine can reach what listens there."""
        return self.host.lower() == "localhost" or (self._number is not None and self._number.is_loopback)

    @property
    def _number(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None


def parse_address(text: str, *, to_listen: bool = False) -> Address:
    """Reads `host:port`, `[::1]:port` or `unix:/path`.

    Args:
      text: what the user wrote.
      to_listen: whether port 0, of which the system makes a free one, is allowed.

    Raises:
      UserError: in one line.
    """
    subject = f"address {text!r}"
    if not text.isprintable() or any("\ud800" <= mark <= "\udfff" for mark in text):
        raise UserError(subject, expected=_FORMS, found="characters that cannot be printed")
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path:
            raise UserError(subject, expected=_FORMS, found="no path")
        if len(path.encode()) > _LONGEST_SOCKET_PATH:
            raise UserError(
                subject,
                expected=f"a path of at most {_LONGEST_SOCKET_PATH} bytes",
                found=str(len(path.encode())),
                remedy="use a shorter one, such as under /tmp",
            )
        return Address(f"unix:{path}", path=path)
    if "/" in text:
        raise UserError(subject, expected=_FORMS, remedy="leave out scheme and path")
    host, colon, digits = text.rpartition(":")
    if text.endswith("]") or not colon:
        raise UserError(subject, expected=_FORMS, found="no port")
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError as error:
            raise UserError(subject, expected="an IPv6 address in brackets", found=host) from error
    elif ":" in host or "[" in host or "]" in host:
        raise UserError(subject, expected=_FORMS, remedy=f"write [{host.strip('[]')}]:{digits}")
    if not host or any(mark.isspace() for mark in host):
        raise UserError(subject, expected=_FORMS, found="no host" if not host else repr(host))
    least = 0 if to_listen else 1
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 5 or not least <= int(digits) <= 65535:
        raise UserError(subject, expected=f"a port from {least} to 65535", found=digits[:20] or "nothing")
    return Address(f"{host}:{int(digits)}", host.strip("[]"), int(digits))


def require_free(address: Address) -> None:
    """Refuses an address on which somebody listens: gRPC would take a Unix socket's path away from them.

    Raises:
      UserError: naming it.
    """
    if address.path:
        path = pathlib.Path(address.path)
        if not path.parent.is_dir():
            raise taken(address, "its folder is not there")
        if path.exists() and not path.is_socket():
            raise taken(address, "a file is there")
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(address.path) == 0:
                raise taken(address, "somebody listens there")
        return
    try:
        (family, kind, protocol, _, where), *_ = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise taken(address, error.strerror or str(error)) from error


def taken(address: Address, why: str) -> UserError:
    """What to say of an address that cannot be listened on, and why."""
    return UserError(
        f"address {address.text}",
        expected="one that can be listened on",
        found=why,
        remedy="choose another with --bridge.address",
    )


def client_options(address: Address) -> Options:
    """Channel options of an actor: any size of message, pings, nothing shared with other channels."""
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        # Else a new channel waits out the failures of those before it.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return [*options, ("grpc.enable_http_proxy", 0)] if address.is_local else options


def server_options(max_message_bytes: int, max_connections: int = _MOST_CONNECTIONS) -> Options:
    """Server options of a learner.

    Args:
      max_message_bytes: largest message that it takes; larger ones end their stream.
      max_connections: what it accepts at once; further ones are closed.
    """
    return [
        ("grpc.max_allowed_incoming_connections", min(max_connections, _MOST_CONNECTIONS)),
        ("grpc.max_concurrent_streams", _STREAMS_PER_CONNECTION),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),  # an actor's open stream is a call
        ("grpc.so_reuseport", 0),  # else two learners share a port without a word
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_TIMEOUT_MS),
        ("grpc.http2.max_ping_strikes", 0),  # actors in other languages may ping as they like
    ]
