"""Who gets in: every wrong combination of TLS, certificates and token, on real sockets."""

import contextlib
import pathlib
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time

import grpc
import pytest
from counting_environment import Counting
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from test_server import SPEC, describe, make_engine, serving

from zerocopy_envs.errors import UserError
from zerocopy_seed import cli
from zerocopy_seed.certificates import FILES, Issued, issue, write_credentials
from zerocopy_seed.config import BridgeConfig, Config, EnvConfig
from zerocopy_seed.loops.train import train
from zerocopy_seed.remote import bridge_pb2, bridge_pb2_grpc, diagnosis
from zerocopy_seed.remote.access import (
    Access,
    Credentials,
    is_right_token,
    read_access,
    read_actor_credentials,
)
from zerocopy_seed.remote.addresses import parse_address
from zerocopy_seed.remote.client import ActorClient
from zerocopy_seed.remote.server import Server
from zerocopy_seed.remote.transport import SOFTWARE, VERSION

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What `certs` writes, and wrong ones beside it."""
    directory = tmp_path_factory.mktemp("credentials")
    write_credentials(directory, ["learner.invalid"], days=1)
    write_credentials(directory / "foreign", [], days=1)
    key = load_pem_private_key((directory / "ca-key.pem").read_bytes(), None)
    ca = Issued(x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes()), key)  # pyright: ignore

    def write(name: str, usage: x509.ObjectIdentifier, host: str, days: float) -> None:
        issued = issue(ca, name, usage, [x509.DNSName(host)], days)
        (directory / f"{name}.pem").write_bytes(issued.certificate_pem)
        (directory / f"{name}-key.pem").write_bytes(issued.key_pem)

    write("late-actor", CLIENT, "any", -1)
    write("late-server", SERVER, "localhost", -1)
    write("elsewhere", SERVER, "elsewhere.invalid", 1)
    (directory / "wrong-token").write_text("x" * 43)
    return directory


def learners(files: pathlib.Path, **settings: str) -> Access:
    """A learner's access with these files of `files`."""
    named = {name: str(files / file) for name, file in settings.items()}
    return read_access(BridgeConfig(**named), parse_address("127.0.0.1:1"))  # pyright: ignore


KINDS = {
    "open": {},
    "token": {"token_file": "token"},
    "tls": {"cert": "server.pem", "key": "server-key.pem", "token_file": "token"},
    "mutual": {"cert": "server.pem", "key": "server-key.pem", "token_file": "token", "ca": "ca.pem"},
    "late": {"cert": "late-server.pem", "key": "late-server-key.pem", "token_file": "token"},
    "elsewhere": {"cert": "elsewhere.pem", "key": "elsewhere-key.pem", "token_file": "token"},
}


@pytest.fixture(scope="module")
def ports(files):
    """Of a learner of each kind."""
    with contextlib.ExitStack() as stack:
        found, engine = {}, make_engine()  # nobody gets as far as acting
        for kind, settings in KINDS.items():
            access = learners(files, **settings)
            server = Server(engine, describe(SPEC), ("localhost:0",), in_thread=False, access=access)
            (address,) = stack.enter_context(server).addresses
            found[kind] = address.rpartition(":")[2]
        yield found


TOKEN = ("--token-file", "token")
CA = ("--ca", "ca.pem")
OWN = ("--cert", "actor.pem", "--key", "actor-key.pem")


@pytest.mark.parametrize(
    ("kind", "words", "line"),
    [
        ("token", (), "refuses: token: expected the learner's, found none; --token-file"),
        ("token", ("--token-file", "wrong-token"), "refuses: token: expected the learner's, found another"),
        ("tls", CA, "refuses: token: expected the learner's, found none"),
        ("tls", (*CA, "--token-file", "wrong-token"), "token: expected the learner's, found another"),
        ("tls", TOKEN, "expected TLS, found an actor without; --ca"),
        ("mutual", TOKEN, "expected TLS, found an actor without; --ca"),
        ("open", CA, "expected TLS, since --ca is given, found none"),
        ("tls", ("--ca", "foreign/ca.pem", *TOKEN), "expected a certificate of the CA in --ca"),
        ("mutual", (*CA, *TOKEN), "asks for, found none; --cert and --key"),
        (
            "mutual",
            (*CA, *TOKEN, "--cert", "foreign/actor.pem", "--key", "foreign/actor-key.pem"),
            "asks for, found one of which TLS says: unable to get local issuer certificate",
        ),
        (
            "mutual",
            (*CA, *TOKEN, "--cert", "late-actor.pem", "--key", "late-actor-key.pem"),
            "asks for, found one of which TLS says: certificate has expired",
        ),
        (
            "mutual",
            (*CA, *TOKEN, "--cert", "server.pem", "--key", "server-key.pem"),
            "asks for, found one of which TLS says: unsuitable certificate purpose",
        ),
        ("mutual", (*CA, *OWN), "refuses: token: expected the learner's, found none"),
        ("late", (*CA, *TOKEN), "expected a certificate that is good today"),
        ("elsewhere", (*CA, *TOKEN), "expected a certificate for localhost"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_not_tried_again(
    files, ports, capsys, monkeypatch, kind, words, line
):
    monkeypatch.chdir(files)
    address = f"localhost:{ports[kind]}"
    assert cli.main(["actor", address, "--reconnect-s", "5", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert line in err


@pytest.mark.parametrize("words", [(*CA, *TOKEN), (*CA, *TOKEN, *OWN)])
def test_a_proxy_without_its_learner_is_tried_again(files, capsys, monkeypatch, words):
    """It speaks TLS, asks for no certificate, and closes."""
    monkeypatch.chdir(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("server.pem", "server-key.pem")
    context.set_alpn_protocols(["h2"])
    is_over, came, greeted = threading.Event(), [], []

    def close_each(listening):
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with context.wrap_socket(connection, server_side=True):
                    came.append(1)

    def greet(*arguments, greet=diagnosis._greet):
        greeted.append(1)
        return greet(*arguments)

    monkeypatch.setattr(diagnosis, "_greet", greet)
    with socket.create_server(("localhost", 0)) as listening:
        listening.settimeout(0.1)
        proxy = threading.Thread(target=close_each, args=(listening,))
        proxy.start()
        address = f"localhost:{listening.getsockname()[1]}"
        assert cli.main(["actor", address, "--reconnect-s", "1", *words]) == 1
        is_over.set()
        proxy.join()
    assert f"nothing to do at {address}: " in capsys.readouterr().err
    assert len(greeted) == 1 and len(came) > 2  # who has been reached once is not greeted again


def test_those_who_show_all_of_it_play(files, tmp_path, monkeypatch):
    monkeypatch.setattr("os.chmod", lambda *_: None)  # the socket is the owner's alone from its first moment
    unix = f"unix:{tmp_path}/bridge"
    access = learners(files, **KINDS["mutual"])
    with serving(make_engine(), ("127.0.0.1:0", unix), access=access) as (server, _):
        address = server.addresses[0]
        credentials = read_actor_credentials(
            address,
            ca=str(files / "ca.pem"),
            cert=str(files / "actor.pem"),
            key=str(files / "actor-key.pem"),
            token_file=str(files / "token"),
        )
        # the Unix socket is the user's own, and asks for nothing
        assert stat.S_IMODE((tmp_path / "bridge").stat().st_mode) == 0o600
        for where, shown in ((address, credentials), (unix, Credentials())):
            with ActorClient(where, SPEC, 2, credentials=shown) as client:
                simulator = Counting(2)
                simulator.send(client.step(simulator.reset(client.seeds)))
                client.step(simulator.recv()[1])


CALLS = {
    "Describe": lambda channel, metadata: bridge_pb2_grpc.BridgeStub(channel).Describe(
        bridge_pb2.DescribeRequest(version=VERSION, software=SOFTWARE), metadata=metadata
    ),
    "Join": lambda channel, metadata: bridge_pb2_grpc.BridgeStub(channel).Join(
        bridge_pb2.JoinRequest(version=VERSION), metadata=metadata
    ),
    "Step": lambda channel, metadata: next(
        bridge_pb2_grpc.BridgeStub(channel).Step(iter(()), metadata=(*metadata, ("session", "x")))
    ),
    "Check": lambda channel, metadata: health_pb2_grpc.HealthStub(channel).Check(  # pyright: ignore
        health_pb2.HealthCheckRequest(), metadata=metadata
    ),
    "unknown": lambda channel, metadata: channel.unary_unary("/zerocopy_seed.v1.Bridge/Unknown")(
        b"", metadata=metadata
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_call_answers_without_the_token(files, ports, call):
    """With it each answers in its own way."""
    token = (files / "token").read_text().strip()
    with grpc.insecure_channel(f"localhost:{ports['token']}") as channel:
        for bearer in (None, "", token, f"bearer {token}", f"Bearer {token[:-1]}", f"Bearer {token}x"):
            metadata = () if bearer is None else (("authorization", bearer),)
            with pytest.raises(grpc.RpcError) as refusal:
                CALLS[call](channel, metadata)
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert token not in str(refusal.value.details())
        try:
            CALLS[call](channel, (("authorization", f"Bearer {token}"),))
        except grpc.RpcError as error:
            assert error.code() is not grpc.StatusCode.UNAUTHENTICATED  # pyright: ignore


def test_the_token_is_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(found: bytes, right: bytes) -> bool:
        compared.append((found, right))
        return found == right

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert is_right_token({"authorization": "Bearer 0123"}, "0123")
    assert not is_right_token({}, "0123")
    assert compared == [(b"Bearer 0123", b"Bearer 0123"), (b"", b"Bearer 0123")]


@pytest.mark.parametrize(
    ("address", "settings", "line"),
    [
        ("0.0.0.0:1", {}, "bridge.address 0.0.0.0:1: expected TLS and a token (bridge.cert, bridge.key, "),
        (
            "[::]:1",
            {},
            "found neither; `zerocopy-seed certs DIR` makes them; --bridge.insecure lets anybody in",
        ),
        ("learner.example.org:1", {}, "found neither"),
        ("192.0.2.7:1", {"cert": "server.pem", "key": "server-key.pem"}, "found no token"),
        (
            "192.0.2.7:1",
            {"cert": "server.pem", "key": "server-key.pem", "ca": "ca.pem"},
            "found no token",
        ),
        ("0.0.0.0:1", {"token_file": "token"}, "bridge.token_file: expected bridge.cert and bridge.key"),
        ("127.0.0.1:1", {"ca": "ca.pem"}, "bridge.ca: expected bridge.cert and bridge.key with it"),
        ("127.0.0.1:1", {"cert": "server.pem"}, "bridge.cert: expected bridge.key with it, found none"),
        ("127.0.0.1:1", {"key": "server-key.pem"}, "bridge.key: expected bridge.cert with it, found none"),
        (
            "127.0.0.1:1",
            {"cert": "server.pem", "key": "actor-key.pem"},
            "actor-key.pem: expected the key of server.pem, found that of another certificate",
        ),
        ("127.0.0.1:1", {"cert": "token", "key": "token"}, "expected a certificate and its key"),
        ("127.0.0.1:1", {"cert": "server.pem", "key": "locked-key.pem"}, "its key without a password"),
        (
            "127.0.0.1:1",
            {"cert": "server.pem", "key": "server-key.pem", "ca": "token"},
            "bridge.ca token: expected certificates (PEM), found none; `zerocopy-seed certs DIR`",
        ),
        ("127.0.0.1:1", {"token_file": "nowhere"}, "found No such file or directory; `zerocopy-seed certs"),
        ("127.0.0.1:1", {"token_file": "short"}, "a token of at least 16 characters, found 5"),
        ("127.0.0.1:1", {"token_file": "ca.pem"}, "without blanks, found others among them; `zerocopy"),
        ("127.0.0.1:1", {"token_file": "long"}, "without blanks, found 1025; `zerocopy-seed certs"),
    ],
)
def test_what_a_learner_lacks(files, monkeypatch, address, settings, line):
    monkeypatch.chdir(files)
    key = load_pem_private_key((files / "server-key.pem").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open sesame"))
    (files / "locked-key.pem").write_bytes(locked)
    (files / "short").write_text("short\n")
    (files / "long").write_text("x" * 1025)
    with pytest.raises(UserError) as refusal:
        read_access(BridgeConfig(**settings), parse_address(address))
    assert line in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("address", "settings"),
    [
        ("127.0.0.1:1", {}),
        ("localhost:1", {}),
        ("[::1]:1", {}),
        ("unix:/tmp/x", {}),
        ("0.0.0.0:1", {"insecure": True}),
        (
            "0.0.0.0:1",
            {"insecure": True, "token_file": "token", "cert": "server.pem", "key": "server-key.pem"},
        ),
        ("0.0.0.0:1", {"insecure": True, "cert": "server.pem", "key": "server-key.pem"}),
        ("0.0.0.0:1", {"insecure": True, "cert": "server.pem", "key": "server-key.pem", "ca": "ca.pem"}),
        ("0.0.0.0:1", {"cert": "server.pem", "key": "server-key.pem", "token_file": "token"}),
    ],
)
def test_what_a_learner_needs(files, monkeypatch, address, settings):
    monkeypatch.chdir(files)
    access = read_access(BridgeConfig(**settings), parse_address(address))
    assert access.is_open == ("insecure" in settings and not {"token_file", "ca"} & settings.keys())
    token = (files / "token").read_text().strip()
    assert token not in repr(access) and "PRIVATE KEY" not in repr(access)


def test_train_refuses_an_open_address_before_it_compiles(tmp_path):
    config = Config(EnvConfig("zerocopy:Catch", place="actors"), 64, bridge=BridgeConfig(address="0.0.0.0:0"))
    with pytest.raises(UserError, match="bridge.address 0.0.0.0:0: expected TLS and a token"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_actor_sends_its_token_over_tls_alone(files):
    token = str(files / "token")
    with pytest.raises(
        UserError, match="--token-file: expected --ca with it at 192.0.2.7:1: a token is sent"
    ):
        read_actor_credentials("192.0.2.7:1", token_file=token)
    with pytest.raises(UserError, match="--cert: expected --ca with it"):
        read_actor_credentials("127.0.0.1:1", cert=str(files / "actor.pem"), key=str(files / "actor-key.pem"))
    assert read_actor_credentials("127.0.0.1:1", token_file=token).metadata


def test_those_who_are_too_many_hear_why():
    access = Access(max_streams=2, max_envs_per_actor=3)
    with serving(make_engine(), access=access) as (server, _), contextlib.ExitStack() as stack:
        address = server.addresses[0]
        with pytest.raises(UserError, match="num_environments: expected 1 to 3, .*max_envs_per_actor"):
            ActorClient(address, SPEC, 4, reconnect_s=0)
        for _ in range(2):
            stack.enter_context(ActorClient(address, SPEC, 1))
        with pytest.raises(UserError, match="Concurrent RPCs? limit"):
            ActorClient(address, SPEC, 1, reconnect_s=0)
        host, _, port = address.rpartition(":")
        silent = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(8)]
        ends = 0
        for connection in silent:
            connection.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                while connection.recv(4096):
                    pass
                ends += 1
        assert ends >= 4  # of 8 beside the two actors, at 4 connections in all


HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # and empty SETTINGS


def test_those_who_connect_and_call_nothing_make_room(monkeypatch):
    """They hold all the places there are; an actor that waits in its stream is not one of them."""
    monkeypatch.setattr("zerocopy_seed.remote.addresses._IDLE_MS", 1000)
    with serving(make_engine(), access=Access(max_streams=2)) as (server, _), contextlib.ExitStack() as stack:
        address = server.addresses[0]
        joined = stack.enter_context(ActorClient(address, SPEC, 2))
        simulator = Counting(2)
        timestep = simulator.reset(joined.seeds)
        host, _, port = address.rpartition(":")
        for _ in range(3):
            squatter = stack.enter_context(socket.create_connection((host, int(port))))
            squatter.sendall(HELLO)
        with pytest.raises(UserError, match="expected an answer"):
            ActorClient(address, SPEC, 1, reconnect_s=0)
        stack.enter_context(ActorClient(address, SPEC, 1, reconnect_s=20))
        time.sleep(1.5)
        simulator.send(joined.step(timestep))
        joined.step(simulator.recv()[1])
        assert joined.num_reconnects == 0


def test_certs_writes_for_its_owner_alone_and_nothing_over(tmp_path, capsys):
    directory = tmp_path / "a directory"
    words = ["certs", str(directory), "--host", "learner.example.org", "--host", "192.0.2.7"]
    assert cli.main(words) == 0
    out, _ = capsys.readouterr()
    assert "zerocopy-seed actor learner.example.org:8686 --ca ca.pem" in out
    assert sorted(path.name for path in directory.iterdir()) == sorted(FILES)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    before = {}
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        before[path.name] = path.read_bytes()
    assert before["token"].decode().strip() not in out
    server = x509.load_pem_x509_certificate(before["server.pem"])
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["learner.example.org", "localhost"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["192.0.2.7", "127.0.0.1", "::1"]

    assert cli.main(words) == 2
    assert "expected no such file" in capsys.readouterr().err
    (directory / "ca.pem").unlink()
    assert cli.main(words) == 2
    assert {path.name for path in directory.iterdir()} == {*FILES} - {"ca.pem"}


def test_certs_that_cannot_all_be_written_leave_none(tmp_path):
    """As on a full disk, found out at the fourth file."""
    text = (
        "import pathlib, resource, signal, sys\n"
        "from zerocopy_seed import certificates\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "write, written = certificates._write_new, []\n"
        "def last(path, content):\n"
        "    written.append(path)\n"
        "    if len(written) == 4:\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))\n"
        "    write(path, content)\n"
        "certificates._write_new = last\n"
        "certificates.write_credentials(pathlib.Path(sys.argv[1]), [], days=1)\n"
    )
    found = subprocess.run([sys.executable, "-c", text, tmp_path / "x"], capture_output=True, text=True)
    assert "expected a directory that can be written, found File too large; choose another" in found.stderr
    assert list((tmp_path / "x").iterdir()) == []
    write_credentials(tmp_path / "x", [], days=1)


@pytest.mark.parametrize(
    "host", ["learner:8686", "https://learner", "a b", "-a.example", "256.1.1.1", "", "é"]
)
def test_hosts_that_are_none(tmp_path, capsys, host):
    assert cli.main(["certs", str(tmp_path / "x"), f"--host={host}"]) == 2
    assert f"--host {host}: expected a host's name or number" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
