"""A run's figures for Prometheus to collect, over HTTP. Imports no JAX.

The page is a few lines of text with a fixed form, so the standard library serves it: no package is needed.
"""

from __future__ import annotations

import contextlib
import errno
import http.server
import math
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import MetricsConfig

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATH = "/metrics"
_PREFIX = "zerocopy_seed_"
_DEADLINE_S = 5.0  # of a reader, from its first byte to the last that it takes
_MOST_READERS = 8  # at once; further ones are turned away

# What a line of metrics says has happened so far in the run, or since the line before: counters of the page.
SO_FAR = {
    "env_steps": ("env_steps_total", "Transitions learned from; of a resumed run since its beginning."),
    "num_updates": ("updates_total", "Calls of the agent's learn; of a resumed run since its beginning."),
    "num_lost_actors": ("lost_actors_total", "Actors that went without a goodbye."),
    "num_failed_saves": ("failed_checkpoints_total", "Checkpoints that could not be saved."),
    "num_saves": ("saved_checkpoints_total", "Checkpoints that were saved."),
    "num_lost_lines": ("lost_lines_total", "Lines of metrics that could not be written."),
}
SINCE = {
    "num_episodes": ("episodes_total", "Episodes that ended."),
    "dropped_steps": ("dropped_rows_total", "Rows of unfinished unrolls that lost actors took with them."),
    "num_unusable_rows": (
        "unusable_rows_total",
        "Timesteps with numbers that are not finite, which count for nothing.",
    ),
    "num_skipped_updates": (
        "skipped_updates_total",
        "Steps of the optimiser left out, as their gradients were not finite.",
    ),
}
GAUGES = {
    "actors": "Actors by state: acting, or joining (no stream yet).",
    "waiting_requests": "Messages of actors that wait to be acted upon.",
    "finished_unrolls": "Unrolls of actors that wait for the learner.",
    "live_slots": "Environments of actors that are there.",
    "free_slots": "Places for environments that no actor has.",
    "env_steps_per_s": "Transitions a second, over the last line of metrics.",
    "episode_return": "Mean return of the episodes that ended within the last line of metrics.",
    "episode_length": "Their mean length.",
    "inference_batch": "Mean environments of an inference call.",
    "inference_fill": "Their share of the call's rows; the rest is padding.",
    "inference_wait_s": "Seconds in which all that waited had to wait for the learner.",
    "learner_wait_s": "Seconds in which the learner had to wait for unrolls of actors.",
    "policy_lag": "Mean updates between an unroll's first action and its use.",
    "policy_lag_max": "The most such updates.",
}


class MetricsPage:
    """Serves the page from its beginning to its end; a context manager.

    Args:
      host: address to listen on.
      port: and port; 0 takes a free one.
      labels: of the run, on every figure.

    Attributes:
      port: where it listens.

    Raises:
      UserError: it cannot be listened on; at once.
    """

    def __init__(self, host: str, port: int, labels: Mapping[str, str]):
        self._labels, self._lock = dict(labels), threading.Lock()
        self._rows: dict[str, dict[str, float]] = {}  # of each member, or of "" alone
        self._live: Callable[[], Mapping[str, float]] = dict
        page = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.partition("?")[0] not in (PATH, "/"):
                    self.send_error(404)
                    return
                text = page.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = _listen(host, port, Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics page", daemon=True)

    def __enter__(self) -> MetricsPage:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def update(self, line: Mapping[str, Any], member: str = "") -> None:
        """Takes in a line of metrics, of one of several members where there are some."""
        with self._lock:
            row = self._rows.setdefault(member, {})
            for name, value in line.items():
                if isinstance(value, bool) or not isinstance(value, int | float):
                    continue
                row[name] = row.get(name, 0) + value if name in SINCE else value

    def show(self, live: Callable[[], Mapping[str, float]]) -> None:
        """What `live` returns is asked for anew at every reading, from the reading's thread.

        A name may end with labels: `actors{state="acting"}`.
        """
        self._live = live

    def text(self) -> str:
        """The page."""
        with self._lock:
            rows = {member: dict(row) for member, row in self._rows.items()}
        samples: dict[str, list[tuple[str, float]]] = {}
        for member, row in rows.items():
            labels = _labels({"member": member} if member else {})
            for name, value in row.items():
                samples.setdefault(name, []).append((labels, value))
        for name, value in self._live().items():
            base, _, labels = name.partition("{")
            samples.setdefault(base, []).append((labels.rstrip("}"), value))
        lines = []
        for name, values in samples.items():
            shown, kind, about = _describe(name)
            lines += [f"# HELP {_PREFIX}{shown} {about}", f"# TYPE {_PREFIX}{shown} {kind}"]
            for labels, value in values:
                joined = ",".join(part for part in (_labels(self._labels), labels) if part)
                lines.append(f"{_PREFIX}{shown}{{{joined}}} {_number(value)}")
        return "\n".join([*lines, ""])


class _Server(http.server.ThreadingHTTPServer):
    """Some readers at once, each within its time, however slowly it writes or reads."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, family: int, where: Any, handler: type[socketserver.BaseRequestHandler]):
        self.address_family = socket.AddressFamily(family)
        self._deadlines: dict[socket.socket, float] = {}
        super().__init__(where, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._deadlines) >= _MOST_READERS:
            self.shutdown_request(request)
            return
        self._deadlines[request] = time.monotonic() + _DEADLINE_S
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        self._hang_up(time.monotonic())

    def shutdown_request(self, request: Any) -> None:
        self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        self._hang_up(math.inf)

    def handle_error(self, *_: object) -> None:
        pass

    def _hang_up(self, now: float) -> None:
        for request, deadline in list(self._deadlines.items()):
            if deadline <= now:
                with contextlib.suppress(OSError):  # it has just ended
                    request.shutdown(socket.SHUT_RDWR)  # its thread hears of it


def _listen(host: str, port: int, handler: type[socketserver.BaseRequestHandler]) -> _Server:
    try:
        (family, *_, where), *_ = socket.getaddrinfo(
            host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise _no_host(host, error) from error
    try:
        return _Server(family, (where[0], port, *where[2:]), handler)
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
            raise _no_host(host, error) from error
        raise UserError(
            "metrics.port",
            expected="a port that is free",
            found=f"{host}:{port}: {getattr(error, 'strerror', None) or error}",
            remedy="choose another (--metrics.port), or 0 for no page",
        ) from error


def _no_host(host: str, error: OSError | UnicodeError) -> UserError:
    return UserError(
        "metrics.host",
        expected="a name or number of this machine",
        found=f"{host}: {getattr(error, 'strerror', None) or error}",
        remedy="127.0.0.1 is read on this machine alone, 0.0.0.0 from others too",
    )


def check_metrics(config: MetricsConfig) -> None:
    """Refuses an address that the page could not be served at.

    Raises:
      UserError: naming it.
    """
    if config.port:
        _listen(config.host, config.port, http.server.BaseHTTPRequestHandler).server_close()


@contextlib.contextmanager
def serve_metrics(config: MetricsConfig, run_id: str) -> Iterator[MetricsPage | None]:
    """The page that `config` asks for, from its beginning to its end; None if it asks for none."""
    if not config.port:
        yield None
        return
    with MetricsPage(config.host, config.port, {"run_id": run_id}) as page:
        yield page


def _describe(name: str) -> tuple[str, str, str]:
    """The name on the page, `counter` or `gauge`, and a line about it."""
    if name in SO_FAR or name in SINCE:
        shown, about = (SO_FAR | SINCE)[name]
        return shown, "counter", about
    return name, "gauge", GAUGES.get(name, f"{name} of the last line of metrics.jsonl.")


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")
