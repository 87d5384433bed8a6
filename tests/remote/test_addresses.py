import pytest

from zerocopy_envs.errors import UserError
from zerocopy_seed.remote.addresses import client_options, parse_address
from zerocopy_seed.remote.retry import Retry


@pytest.mark.parametrize(
    ("text", "parsed", "is_local"),
    [
        ("learner:5000", ("learner:5000", "learner", 5000, ""), False),
        ("10.0.0.7:05000", ("10.0.0.7:5000", "10.0.0.7", 5000, ""), False),
        ("127.1.2.3:1", ("127.1.2.3:1", "127.1.2.3", 1, ""), True),
        ("Localhost:65535", ("Localhost:65535", "Localhost", 65535, ""), True),
        ("[::1]:5000", ("[::1]:5000", "::1", 5000, ""), True),
        ("[fe80::2]:5000", ("[fe80::2]:5000", "fe80::2", 5000, ""), False),
        ("unix:/tmp/a b", ("unix:/tmp/a b", "", 0, "/tmp/a b"), True),
        ("unix:///tmp/x", ("unix:/tmp/x", "", 0, "/tmp/x"), True),
        ("unix:run/x", ("unix:run/x", "", 0, "run/x"), True),
    ],
)
def test_addresses(text, parsed, is_local):
    address = parse_address(text)
    assert (address.text, address.host, address.port, address.path) == parsed
    assert address.is_local == is_local
    assert (("grpc.enable_http_proxy", 0) in client_options(address)) == is_local


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no port"),
        ("learner", "no port"),
        ("[::1]", "no port"),
        (":5000", "no host"),
        ("a b:5000", "'a b'"),
        ("::1:5000", "write [::1]:5000"),
        ("[::1:5000", "write [::1]:5000"),
        ("[localhost]:5000", "an IPv6 address in brackets, found [localhost]"),
        ("learner:", "a port from 1 to 65535, found nothing"),
        ("learner:0", "a port from 1 to 65535, found 0"),
        ("learner:65536", "found 65536"),
        ("learner:-1", "found -1"),
        ("learner:5e3", "found 5e3"),
        ("learner:\u0663", "a port"),
        ("http://learner:5000", "leave out scheme and path"),
        ("learner:5000/x", "leave out scheme and path"),
        ("unix:", "no path"),
        ("unix:/" + "x" * 107, "at most 107 bytes, found 108"),
    ],
)
def test_malformed_addresses_get_one_line(text, words):
    with pytest.raises(UserError) as caught:
        parse_address(text)
    line = str(caught.value)
    assert line.startswith(f"address {text!r}: expected ") and words in line and "\n" not in line


def test_a_port_may_be_left_to_the_system_by_those_who_listen():
    assert parse_address("127.0.0.1:0", to_listen=True).port == 0


def test_delays_double_up_to_ten_seconds_and_end(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    retry = Retry(60.0)
    delays = []
    while (delay := retry.failed()) is not None:
        delays.append(delay)
        now += delay
    assert delays[:8] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0])
    assert max(delays) == 10 and sum(delays) == pytest.approx(60)
    retry.succeeded()
    assert not retry.failing and retry.failed() == pytest.approx(0.1)
    assert Retry(0.0).failed() is None
    forever = Retry(float("inf"))
    assert max(delay for _ in range(3000) if (delay := forever.failed()) is not None) == 10
