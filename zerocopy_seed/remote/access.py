"""Who may join a learner, and what both ends show each other. Imports no JAX and no gRPC.

A learner that other machines can reach shows a certificate and asks for a token, and where it has a CA for
them, for actors' certificates. Whoever joins over a Unix socket is the learner's own user and shows nothing.
"""

from __future__ import annotations

import dataclasses
import hmac
import pathlib
import ssl

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import BridgeConfig
from zerocopy_seed.remote.addresses import Address, parse_address

TOKEN_KEY = "authorization"
"""Of the metadata that holds `Bearer TOKEN`."""

_LEAST_TOKEN = 16  # characters: what is shorter can be guessed
_MOST_TOKEN = 1024
_MAKE_SOME = "`zerocopy-seed certs DIR` makes one"


@dataclasses.dataclass(frozen=True)
class Credentials:
    """What one end shows to the other, and by which CA it knows the other; nothing where there is none.

    Attributes:
      ca: certificates of authorities, PEM. An actor that has it speaks TLS; a learner that has it asks for
        certificates of actors.
      certificate: own certificate and those between it and its CA, PEM.
      key: the certificate's key, PEM.
      token: shared secret.
      files: where certificate and key were read from.
    """

    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = dataclasses.field(default=b"", repr=False)
    token: str = dataclasses.field(default="", repr=False)
    files: tuple[str, str] = ("", "")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call of an actor bears."""
        return ((TOKEN_KEY, f"Bearer {self.token}"),) if self.token else ()


NO_CREDENTIALS = Credentials()
"""Of an end that shows nothing."""


@dataclasses.dataclass(frozen=True)
class Access:
    """Who may join over the network, and how much of a learner they may take.

    Attributes:
      credentials: the learner's.
      max_streams: calls at once, of which an actor's stream is one.
      max_envs_per_actor: environments that one may join with.
      is_open: whether any machine that reaches the learner can join.
    """

    credentials: Credentials = NO_CREDENTIALS
    max_streams: int = BridgeConfig.max_streams
    max_envs_per_actor: int = BridgeConfig.max_envs_per_actor
    is_open: bool = False


def read_access(bridge: BridgeConfig, address: Address) -> Access:
    """What `[bridge]` says, its files read.

    Raises:
      UserError: a file that is none of what it should be; or an address that others can reach without TLS
        and a token, unless `bridge.insecure` allows it.
    """
    credentials = read_credentials(
        bridge.ca, bridge.cert, bridge.key, bridge.token_file, prefix="bridge.", token_name="token_file"
    )
    is_private = bool(address.path) or address.is_loopback
    if bridge.ca and not bridge.cert:
        raise UserError(
            "bridge.ca",
            expected="bridge.cert and bridge.key with it, for TLS",
            found="none of them",
            remedy=_MAKE_SOME,
        )
    if bridge.token_file and not bridge.cert and not is_private:
        raise UserError(
            "bridge.token_file",
            expected=f"bridge.cert and bridge.key with it at {address.text}: a token is sent over TLS alone",
            found="none",
            remedy=_MAKE_SOME,
        )
    if not (is_private or bridge.insecure or (bridge.cert and bridge.token_file)):
        raise UserError(
            f"bridge.address {address.text}",
            expected="TLS and a token (bridge.cert, bridge.key, bridge.token_file), since other machines can "
            "join there",
            found="no token" if bridge.cert else "neither",
            remedy="`zerocopy-seed certs DIR` makes them; --bridge.insecure lets anybody in",
        )
    # An actor's certificate lets in as well as a token does.
    is_open = not (is_private or (bridge.cert and (bridge.token_file or bridge.ca)))
    return Access(credentials, bridge.max_streams, bridge.max_envs_per_actor, is_open)


def read_actor_credentials(
    address: str, *, ca: str = "", cert: str = "", key: str = "", token_file: str = ""
) -> Credentials:
    """What an actor needs to join, from files; "" stands for none.

    Args:
      address: of the learner.
      ca: the CA of the learner's certificate; without it TLS is not spoken.
      cert: the actor's certificate, for learners that ask for one.
      key: the certificate's key, without a password.
      token_file: one line, the token.

    Raises:
      UserError: a file that is none of what it should be, or a token or certificate without TLS.
    """
    parsed = parse_address(address)
    credentials = read_credentials(ca, cert, key, token_file, prefix="--", token_name="token-file")
    if cert and not ca:
        raise UserError(
            "--cert", expected="--ca with it, which the learner's certificate is of", found="none"
        )
    if token_file and not ca and not parsed.is_local:
        raise UserError(
            "--token-file",
            expected=f"--ca with it at {parsed.text}: a token is sent over TLS alone",
            found="none",
        )
    return credentials


def read_credentials(
    ca: str, cert: str, key: str, token_file: str, *, prefix: str, token_name: str
) -> Credentials:
    """Reads what files there are; "" stands for none.

    Args:
      ca: certificates of authorities.
      cert: own certificate.
      key: its key, without a password.
      token_file: one line, the token.
      prefix: what stands before the names of these settings, for messages.
      token_name: what the last of them is called there.

    Raises:
      UserError: naming the setting and the file.
    """
    if bool(cert) != bool(key):
        here, other = ("cert", "key") if cert else ("key", "cert")
        raise UserError(f"{prefix}{here}", expected=f"{prefix}{other} with it", found="none")
    credentials = Credentials(files=(cert, key))
    if ca:
        credentials = dataclasses.replace(credentials, ca=_read_ca(f"{prefix}ca", ca))
    if cert:
        certificate = _read(f"{prefix}cert", cert)
        private = _read(f"{prefix}key", key)
        _check_pair(prefix, cert, key)
        credentials = dataclasses.replace(credentials, certificate=certificate, key=private)
    if token_file:
        token = _read_token(f"{prefix}{token_name}", token_file)
        credentials = dataclasses.replace(credentials, token=token)
    return credentials


def is_right_token(metadata: dict[str, str | bytes], token: str) -> bool:
    """Whether a call's metadata bear the token, found in a time that does not tell where they differ."""
    found = metadata.get(TOKEN_KEY, "")
    found = found.encode() if isinstance(found, str) else found
    return hmac.compare_digest(found, f"Bearer {token}".encode())


def _read(setting: str, file: str) -> bytes:
    try:
        return pathlib.Path(file).read_bytes()
    except OSError as error:
        raise UserError(
            f"{setting} {file}",
            expected="a file that can be read",
            found=error.strerror or str(error),
            remedy=_MAKE_SOME,
        ) from error


def _read_ca(setting: str, file: str) -> bytes:
    content = _read(setting, file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise UserError(
            f"{setting} {file}", expected="certificates (PEM)", found="none", remedy=_MAKE_SOME
        ) from error
    return content


def _check_pair(prefix: str, cert: str, key: str) -> None:
    try:
        # An empty password: else a key that has one would be asked for at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UserError(
                f"{prefix}key {key}",
                expected=f"the key of {cert}",
                found="that of another certificate",
                remedy="name the two that were made together",
            ) from error
        raise UserError(
            f"{prefix}cert {cert}, {prefix}key {key}",
            expected="a certificate and its key without a password (PEM)",
            found=(error.reason or str(error)).lower().replace("_", " "),
            remedy=_MAKE_SOME,
        ) from error


def _read_token(setting: str, file: str) -> str:
    subject = f"{setting} {file}"
    content = _read(setting, file).strip()
    if len(content) < _LEAST_TOKEN:
        raise UserError(
            subject,
            expected=f"a token of at least {_LEAST_TOKEN} characters",
            found=f"{len(content)}",
            remedy=_MAKE_SOME,
        )
    if not all(33 <= mark <= 126 for mark in content) or len(content) > _MOST_TOKEN:
        raise UserError(
            subject,
            expected=f"one token: up to {_MOST_TOKEN} printable ASCII characters without blanks",
            found=f"{len(content)}" if len(content) > _MOST_TOKEN else "others among them",
            remedy=_MAKE_SOME,
        )
    return content.decode("ascii")
