"""The page for Prometheus, read over HTTP by Prometheus's own parser."""

import contextlib
import http.client
import socket
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from zerocopy_envs.errors import UserError
from zerocopy_seed.metrics_page import MetricsPage


def read(page, path="/metrics"):
    """{(name, labels besides the run's): value} and {family: type} of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200 and response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(response.read().decode()))
    connection.close()
    samples = {}
    for family in families:
        for sample in family.samples:
            assert sample.labels.pop("run_id") == 'a "run"\\'
            samples[sample.name, *sample.labels.values()] = sample.value
    return samples, {family.name: family.type for family in families}


def test_what_a_run_and_its_actors_say_is_on_the_page():
    with MetricsPage("127.0.0.1", 0, {"run_id": 'a "run"\\'}) as page:
        assert read(page) == ({}, {})
        for env_steps in (100, 2**40):
            page.update(
                {
                    "env_steps": env_steps,
                    "dropped_steps": 3,
                    "num_unusable_rows": 2,
                    "episode_return": float("nan"),
                    "policy_lag": 1.5,
                    "note": "no number",
                    "custom": 7,
                }
            )
        waiting = [4]
        page.show(lambda: {"waiting_requests": waiting[0], 'actors{state="acting"}': 2})
        assert read(page)[0]["zerocopy_seed_waiting_requests",] == 4
        waiting[0] = 5
        samples, types = read(page, "/")
        assert samples.pop(("zerocopy_seed_episode_return",)) != 0
        assert samples == {
            ("zerocopy_seed_env_steps_total",): 2**40,
            ("zerocopy_seed_dropped_rows_total",): 6,
            ("zerocopy_seed_unusable_rows_total",): 4,
            ("zerocopy_seed_policy_lag",): 1.5,
            ("zerocopy_seed_custom",): 7,
            ("zerocopy_seed_waiting_requests",): 5,
            ("zerocopy_seed_actors", "acting"): 2,
        }
        assert types["zerocopy_seed_env_steps"] == "counter" and types["zerocopy_seed_policy_lag"] == "gauge"


def test_members_are_told_apart():
    with MetricsPage("127.0.0.1", 0, {"run_id": 'a "run"\\'}) as page:
        for member in ("seed=0", "seed=1"):
            page.update({"num_updates": len(member)}, member)
        assert set(read(page)[0]) == {
            ("zerocopy_seed_updates_total", "seed=0"),
            ("zerocopy_seed_updates_total", "seed=1"),
        }


def test_garbage_and_silence_do_not_end_it(monkeypatch):
    monkeypatch.setattr("zerocopy_seed.metrics_page._DEADLINE_S", 0.2)
    with MetricsPage("127.0.0.1", 0, {"run_id": 'a "run"\\'}) as page:
        for rubbish in (b"\x16\x03\x01" * 99, b"GET /nothing HTTP/1.1\r\n\r\n", b"\0" * 70_000, b""):
            with socket.create_connection(("127.0.0.1", page.port)) as connection:
                connection.sendall(rubbish)
                assert read(page) == ({}, {})
    assert not any(thread.name == "metrics page" for thread in threading.enumerate())


def test_those_who_drip_hold_up_neither_others_nor_the_end(monkeypatch):
    """A byte now and then, for ever; more of them than are read at once."""
    monkeypatch.setattr("zerocopy_seed.metrics_page._DEADLINE_S", 0.5)
    monkeypatch.setattr("zerocopy_seed.metrics_page._MOST_READERS", 3)
    with contextlib.ExitStack() as stack:
        page = stack.enter_context(MetricsPage("127.0.0.1", 0, {"run_id": 'a "run"\\'}))
        drips = [stack.enter_context(socket.create_connection(("127.0.0.1", page.port))) for _ in range(2)]
        is_over = threading.Event()

        def drip():
            while not is_over.wait(0.02):
                for connection in drips:
                    with contextlib.suppress(OSError):
                        connection.sendall(b"G")

        dripping = threading.Thread(target=drip)
        dripping.start()
        stack.callback(dripping.join)
        stack.callback(is_over.set)
        assert read(page) == ({}, {})
        drips += [stack.enter_context(socket.create_connection(("127.0.0.1", page.port))) for _ in range(4)]
        for connection in list(drips):  # hung up on, at their deadline or since they are too many
            connection.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        deadline = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                assert read(page) == ({}, {})
                break
            assert time.monotonic() < deadline
        monkeypatch.setattr("zerocopy_seed.metrics_page._DEADLINE_S", 600)
        drips.append(stack.enter_context(socket.create_connection(("127.0.0.1", page.port))))
        time.sleep(0.2)
        began = time.monotonic()
        page.__exit__()
        assert time.monotonic() - began < 5


def test_an_address_that_is_taken_is_refused_by_name():
    with (
        MetricsPage("127.0.0.1", 0, {}) as page,
        pytest.raises(
            UserError, match=f"metrics.port: expected a port that is free, .*127.0.0.1:{page.port}"
        ),
    ):
        MetricsPage("127.0.0.1", page.port, {})
    with pytest.raises(UserError, match="metrics.port: "):
        MetricsPage("127.0.0.1", 70_000, {})
    for host in ("203.0.113.1", "nowhere.invalid", "a" * 70):
        with pytest.raises(UserError, match=f"metrics.host: expected .* of this machine, found {host}: .*; "):
            MetricsPage(host, 1, {})


def test_it_has_a_page_for_ipv6():
    try:
        page = MetricsPage("::1", 0, {})
    except UserError:
        pytest.skip("no IPv6 here")
    with page, socket.create_connection(("::1", page.port)) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert connection.recv(99).startswith(b"HTTP/1.0 200")
