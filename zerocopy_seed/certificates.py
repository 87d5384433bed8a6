"""Certificates and a token for a private cluster: the `certs` command. Imports no JAX."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import ipaddress
import os
import pathlib
import re
import secrets
import shlex
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from zerocopy_envs.errors import UserError

FILES = ("ca.pem", "ca-key.pem", "server.pem", "server-key.pem", "actor.pem", "actor-key.pem", "token")
"""What a directory of credentials holds."""

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9])?")  # of a host's name, between dots
_CLOCK_SKEW = datetime.timedelta(hours=1)  # machines whose clocks are behind accept them at once
_TOKEN_BYTES = 32
_PORT = 8686


@dataclasses.dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """As files hold it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """As files hold it, without a password."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def write_credentials(directory: pathlib.Path, hosts: Sequence[str], *, days: float) -> None:
    """Writes `FILES`: a CA, a learner's and an actor's certificate of it, keys, a token; for the owner alone.

    Args:
      directory: made if it is not there.
      hosts: names and numbers by which actors reach the learner; this machine's own are added.
      days: that the certificates are good for.

    Raises:
      UserError: one of the files is there, a host is none, or the directory cannot be written.
    """
    names = [_host(host) for host in dict.fromkeys((*hosts, *_LOCAL_HOSTS))]
    for name in FILES:
        if os.path.lexists(directory / name):
            raise UserError(
                str(directory / name),
                expected="no such file: credentials are not written over",
                found="one",
                remedy="choose another directory, or delete it if nobody uses it",
            )
    ca = issue_ca(days)
    server = issue(ca, "zerocopy_seed learner", ExtendedKeyUsageOID.SERVER_AUTH, names, days)
    actor = issue(ca, "zerocopy_seed actor", ExtendedKeyUsageOID.CLIENT_AUTH, (), days)
    token = f"{secrets.token_urlsafe(_TOKEN_BYTES)}\n".encode()
    contents = [part for made in (ca, server, actor) for part in (made.certificate_pem, made.key_pem)]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_all(directory, dict(zip(FILES, (*contents, token), strict=True)))
    except OSError as error:
        raise UserError(
            str(directory),
            expected="a directory that can be written",
            found=error.strerror or str(error),
            remedy="choose another, or make room there",
        ) from error


def next_steps(directory: pathlib.Path, host: str) -> str:
    """What to do with what has been written, in a few lines."""
    where = f"[{host}]" if ":" in host else host
    here = shlex.quote(str(directory))
    return f"""\
{directory}: {", ".join(FILES)}

on the learner's machine, with ca.pem, server.pem, server-key.pem and token:
  zerocopy-seed train CONFIG.toml --bridge.address 0.0.0.0:{_PORT} --bridge.cert {here}/server.pem \\
      --bridge.key {here}/server-key.pem --bridge.ca {here}/ca.pem --bridge.token-file {here}/token
on each actor's machine, with copies of ca.pem, actor.pem, actor-key.pem and token:
  zerocopy-seed actor {where}:{_PORT} --ca ca.pem --cert actor.pem --key actor-key.pem --token-file token
ca-key.pem signs other certificates: keep it where neither of them runs, or delete it"""


def issue_ca(days: float) -> Issued:
    """A CA that signs certificates of machines and no other CA's."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("zerocopy_seed private CA")
    usage = _key_usage(signs_certificates=True)
    builder = (
        _builder(name, name, key, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Issued(builder.sign(key, hashes.SHA256()), key)


def issue(
    ca: Issued, name: str, usage: x509.ObjectIdentifier, hosts: Sequence[x509.GeneralName], days: float
) -> Issued:
    """A machine's certificate, signed by `ca`; of less than 0 days where it shall have expired."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(name), ca.certificate.subject, key, ca.key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return Issued(builder.sign(ca.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    days: float,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    ends = now + datetime.timedelta(days=days)
    public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuers = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, ends) - _CLOCK_SKEW)
        .not_valid_after(ends)
        .add_extension(public, critical=False)
        .add_extension(issuers, critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    labels = text.split(".")
    if len(text) > 253 or labels[-1].isdigit() or not all(map(_LABEL.fullmatch, labels)):
        raise UserError(
            f"--host {text}",
            expected="a host's name or number, without a port, as actors write it",
            remedy="such as learner.example.org or 192.0.2.7",
        )
    return x509.DNSName(text)


def _write_all(directory: pathlib.Path, contents: dict[str, bytes]) -> None:
    """All of them or, where that fails, none: some would be refused by the next try."""
    with contextlib.ExitStack() as undo:
        for name, content in contents.items():
            _write_new(directory / name, content)
            undo.callback((directory / name).unlink, missing_ok=True)
        undo.pop_all()


def _write_new(path: pathlib.Path, content: bytes) -> None:
    """A file that was not there before, which nobody but its owner ever could read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        try:
            file.write(content)
            file.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
