"""Why a learner that answers cannot be talked to: what TLS says of it and gRPC does not. Imports no JAX."""

from __future__ import annotations

import socket
import ssl

from zerocopy_envs.errors import UserError
from zerocopy_seed.remote.access import Credentials
from zerocopy_seed.remote.addresses import Address

_TIMEOUT_S = 5.0
_HANDSHAKE, _CERTIFICATE_REQUEST = 22, 13  # a record's type, and a message's in it (RFC 8446)
_NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


class Diagnosis:
    """Why one learner cannot be talked to; asked at each failure, it looks until somebody was reached.

    Args:
      address: of the learner.
      credentials: what it is shown, and known by.
    """

    def __init__(self, address: Address, credentials: Credentials):
        self._address, self._credentials = address, credentials
        self._is_made = bool(address.path)

    def find_reason(self) -> UserError | None:
        """Connects once more, to see whether it is TLS that fails; None where trying again may help.

        Takes some seconds at most.
        """
        if self._is_made:
            return None
        try:
            reason = _greet(self._address, self._credentials)
            # Twice, since a learner that ends closes its connections too.
            reason = reason and _greet(self._address, self._credentials)
        except OSError:  # nobody there, or gone meanwhile
            return None
        self._is_made = True
        return reason


def _greet(address: Address, credentials: Credentials) -> UserError | None:
    subject = f"the learner at {address.text}"
    context, requests = _make_context(credentials), list[int]()

    def hear(_: object, direction: str, __: object, kind: int, message: int, ___: object) -> None:
        if (direction, kind, message) == ("read", _HANDSHAKE, _CERTIFICATE_REQUEST):
            requests.append(message)

    context._msg_callback = hear  # pyright: ignore[reportAttributeAccessIssue]  # there is no other way to hear it
    with socket.create_connection((address.host, address.port), _TIMEOUT_S) as connection:
        connection.settimeout(_TIMEOUT_S)
        try:
            with context.wrap_socket(connection, server_hostname=address.host) as stream:
                if not credentials.ca:
                    return UserError(
                        subject,
                        expected="TLS",
                        found="an actor without",
                        remedy="--ca with the CA of its certificate",
                    )
                if stream.recv(1):
                    return None
        except ssl.SSLCertVerificationError as error:
            return _judge_theirs(subject, address, error.verify_message)
        except ssl.SSLError as error:
            if not credentials.ca or error.reason not in _NO_TLS:
                return None
            return UserError(
                subject, expected="TLS, since --ca is given", found="none", remedy="is it the right port?"
            )
    # gRPC closes without a word where it does not accept a certificate; so do proxies without a learner.
    return _judge_ours(address, credentials) if requests else None


def _make_context(credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if credentials.ca:
        context.load_verify_locations(cadata=credentials.ca.decode("ascii"))
    else:  # only whether TLS is spoken there is to be known; nothing is sent
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credentials.certificate:
        context.load_cert_chain(*credentials.files)
    return context


def _judge_theirs(subject: str, address: Address, why: str) -> UserError:
    if "mismatch" in why or "not valid for" in why:
        expected, remedy = f"a certificate for {address.host}", "`zerocopy-seed certs DIR --host NAME`"
    elif "expired" in why or "not yet valid" in why:
        expected, remedy = "a certificate that is good today", "renew it, or set this machine's clock"
    else:
        expected, remedy = "a certificate of the CA in --ca", "is it that learner's CA?"
    return UserError(subject, expected=expected, found=f"one of which TLS says: {why}", remedy=remedy)


def _judge_ours(address: Address, credentials: Credentials) -> UserError:
    why = _what_a_learner_sees(credentials) if credentials.certificate else ""
    return UserError(
        "--cert",
        expected=f"an actor's certificate that is good today and of the CA that {address.text} asks for",
        found=(f"one of which TLS says: {why}" if why else "another") if credentials.certificate else "none",
        remedy="its bridge.ca says which CA" if credentials.certificate else "--cert and --key",
    )


def _what_a_learner_sees(credentials: Credentials) -> str:
    """What is wrong with the own certificate for a learner that knows the same CA; "" if nothing is.

    Both ends of a handshake within this process.
    """
    learner = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    learner.load_cert_chain(*credentials.files)
    learner.load_verify_locations(cadata=credentials.ca.decode("ascii"))
    learner.verify_mode = ssl.CERT_REQUIRED
    actor = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    actor.load_cert_chain(*credentials.files)
    actor.check_hostname, actor.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = actor.wrap_bio(back, there), learner.wrap_bio(there, back, server_side=True)
    for end in ends * 3:  # the flights of a handshake
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except ssl.SSLError:
            return ""
    return ""
