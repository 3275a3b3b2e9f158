"""A kube cluster counts as gone when it is silent, and only then."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from infra.providers.soperator.teardown import gone

SILENT = "http://127.0.0.1:1"


Inputs = dict[str, object]


def at(server: str) -> Inputs:
    """Of the resource of a cluster whose API server is there."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"exec": {"command": "nosuch-tool"}}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    return {"cluster_id": "mk8scluster-1", "kubeconfig": json.dumps(config)}


@pytest.fixture
def refusing() -> Iterator[str]:
    """An API server that refuses everybody; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def ask(found: Inputs, *, exists: bool) -> tuple[str | None, list[str]]:
    said: list[str] = []
    reason = gone(found, exists=lambda _: exists, say=said.append, pauses_s=(0.0, 0.0))
    return reason, said


def test_a_refusal_is_an_answer_and_needs_no_credential(refusing: str):
    assert ask(at(refusing), exists=False) == (None, [])


def test_silence_of_a_cluster_that_the_cloud_no_longer_has_needs_no_wait():
    assert ask(at(SILENT), exists=False) == ("cluster mk8scluster-1 is gone", [])


def test_silence_of_a_cluster_that_exists_is_asked_again_and_said():
    reason, said = ask(at(SILENT), exists=True)
    assert reason is not None
    assert "has not answered for 0 s, though cluster mk8scluster-1 exists" in reason
    assert said == [f"the Kubernetes API at {SILENT} does not answer; asking again"] * 2


def test_a_kubeconfig_that_cannot_be_read_is_left_to_the_engine():
    assert ask({"cluster_id": "c", "kubeconfig": "{}"}, exists=False) == (None, [])


def test_a_secret_of_the_state_is_read_as_the_engine_shows_it():
    """The engine writes a secret that it shows as the JSON of its value."""
    found = at(SILENT)
    secret = {
        "4dabf18193072939515e22adb298388d": "1b47",
        "plaintext": json.dumps(found["kubeconfig"]),
    }
    assert ask({**found, "kubeconfig": secret}, exists=True) == ask(found, exists=True)
