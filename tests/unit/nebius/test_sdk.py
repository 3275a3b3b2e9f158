"""One constructor: plain text stays on this machine, and missing credentials are told at once."""

import json
import os
import re
from datetime import UTC, datetime

import pytest

from infra.providers.nebius import sdk
from infra.providers.nebius.sdk import EndpointError, loopback_target, make_sdk
from tests import another_user
from tests.ports import free_ports


@pytest.fixture
def endpoint(monkeypatch):
    return lambda value: monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.9.9.9", "[::1]"])
def test_loopback_is_taken(endpoint, host):
    endpoint(f"http://{host}:17800")
    assert loopback_target() == f"{host}:17800"


@pytest.mark.parametrize(
    "value", ["http://10.0.0.1:80", "http://api.nebius.cloud:443", "http://0.0.0.0:1"]
)
def test_plain_text_to_anything_but_loopback_is_refused(endpoint, value):
    endpoint(value)
    with pytest.raises(EndpointError, match="in clear"):
        loopback_target()


@pytest.mark.parametrize(
    "value",
    [
        "127.0.0.1:17800",
        "https://127.0.0.1:1",
        "http://127.0.0.1",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:port",
        "http://[::1:17800",
    ],
)
def test_another_form_is_refused_with_the_right_one(endpoint, value):
    endpoint(value)
    with pytest.raises(EndpointError, match=r"http://127\.0\.0\.1:PORT"):
        loopback_target()


def test_the_real_cloud_without_credentials_says_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.delenv("SOPERATOR_NEBIUS_ENDPOINT", raising=False)
    monkeypatch.delenv("NEBIUS_IAM_TOKEN", raising=False)
    monkeypatch.setattr(sdk, "CLI_CONFIG", tmp_path / "none.yaml")
    with pytest.raises(EndpointError, match="nebius iam get-access-token"):
        make_sdk()


def test_the_emulator_without_a_token_says_so(endpoint, monkeypatch):
    endpoint("http://127.0.0.1:17800")
    monkeypatch.delenv("NEBIUS_IAM_TOKEN", raising=False)
    with pytest.raises(EndpointError, match="soperator env"):
        make_sdk()


@another_user.as_root
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("127.0.0.1", each) for each in ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1")]
    + [("127.0.0.1", "::ffff:0.0.0.0"), ("[::1]", "::1"), ("[::1]", "::")]
    + [("localhost", "127.0.0.1"), ("localhost", "0.0.0.0")],
)
def test_a_neighbour_at_the_port_of_the_emulator_gets_no_token(endpoint, monkeypatch, ours, theirs):
    """Who waits there while nothing runs would be the owner's equal once it does."""
    (port,) = free_ports(1)
    endpoint(f"http://{ours}:{port}")
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "a-token")
    make_sdk().sync_close()
    with another_user.listening(port, theirs) as neighbour:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "listens\n"
        told = re.escape(f"{ours}:{port} a program of uid 65534 listens")
        with pytest.raises(EndpointError, match=told):
            make_sdk()


@another_user.as_root
@pytest.mark.parametrize(
    ("ours", "theirs"), [("127.0.0.1", "127.0.0.2"), ("127.0.0.1", "::1"), ("[::1]", "0.0.0.0")]
)
def test_a_neighbour_at_the_same_port_of_another_address_is_no_reason_to_refuse(
    endpoint, monkeypatch, ours, theirs
):
    """Nothing that is sent to ours can come to him."""
    (port,) = free_ports(1)
    endpoint(f"http://{ours}:{port}")
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "a-token")
    with another_user.listening(port, theirs) as neighbour:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "listens\n"
        make_sdk().sync_close()


def test_a_key_that_others_can_read_is_refused(endpoint, monkeypatch, tmp_path):
    key = tmp_path / "key.json"
    key.write_text("{}")
    key.chmod(0o644)
    endpoint("http://127.0.0.1:17800")
    monkeypatch.delenv("NEBIUS_IAM_TOKEN", raising=False)
    monkeypatch.setenv("SOPERATOR_NEBIUS_KEY_FILE", str(key))
    with pytest.raises(EndpointError, match=rf"mode 0644.*chmod 600 {key}"):
        make_sdk()


def test_a_key_that_is_missing_says_how_to_make_one(endpoint, monkeypatch, tmp_path):
    endpoint("http://127.0.0.1:17800")
    monkeypatch.delenv("NEBIUS_IAM_TOKEN", raising=False)
    monkeypatch.setenv("SOPERATOR_NEBIUS_KEY_FILE", str(tmp_path / "none.json"))
    with pytest.raises(EndpointError, match="nebius iam auth-public-key generate"):
        make_sdk()


def test_a_key_file_that_never_ends_is_not_read(endpoint, monkeypatch, tmp_path):
    """The SDK waited for a FIFO for ever, and read /dev/zero until memory was full."""
    endpoint("http://127.0.0.1:17800")
    monkeypatch.delenv("NEBIUS_IAM_TOKEN", raising=False)
    fifo, large = tmp_path / "fifo", tmp_path / "large"
    os.mkfifo(fifo, 0o600)
    large.touch(0o600)
    os.truncate(large, 2 << 20)
    for path, why in ((large, "more than 1 MiB"), (fifo, "not a regular file")):
        monkeypatch.setenv("SOPERATOR_NEBIUS_KEY_FILE", str(path))
        with pytest.raises(EndpointError, match=f"cannot read {path} .*{why}"):
            make_sdk()


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "no JSON",
        json.dumps({"subject-credentials": dict.fromkeys((*"abc", "private-key"), "no PEM")}),
    ],
)
def test_a_key_file_of_something_else_is_named_in_one_line(
    endpoint, monkeypatch, tmp_path, content
):
    """It was a traceback of the SDK. An empty token, as CI has of an unset secret, is none."""
    key = tmp_path / "key.json"
    key.touch(0o600)
    key.write_text(content)
    endpoint("http://127.0.0.1:17800")
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "")
    monkeypatch.setenv("SOPERATOR_NEBIUS_KEY_FILE", str(key))
    with pytest.raises(EndpointError, match=f"^{key}: gives no credential .*set NEBIUS_IAM_TOKEN$"):
        make_sdk()


def test_a_profile_that_is_damaged_is_named_in_one_line(monkeypatch, tmp_path):
    monkeypatch.delenv("SOPERATOR_NEBIUS_ENDPOINT", raising=False)
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "")
    config = tmp_path / "config.yaml"
    config.write_text("profiles: [")
    monkeypatch.setattr(sdk, "CLI_CONFIG", config)
    with pytest.raises(EndpointError, match=f"^{config}: gives no credential .*NEBIUS_IAM_TOKEN"):
        make_sdk()


def test_a_token_from_a_file_may_end_with_a_line_break(endpoint, monkeypatch):
    """gRPC did not take it: a traceback of its own, after the retries."""
    endpoint("http://127.0.0.1:17800")
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "a-token\n")
    assert sdk.iam_token() == ("a-token", None)
    sdk.make_sdk().sync_close()


def test_the_exec_credential_is_what_kubernetes_reads(endpoint, monkeypatch):
    endpoint("http://127.0.0.1:17800")
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "local-token")
    credential = json.loads(sdk.exec_credential())
    assert credential["kind"] == "ExecCredential"
    assert credential["apiVersion"] == "client.authentication.k8s.io/v1"
    assert credential["status"] == {"token": "local-token"}


def test_the_expiry_of_a_token_is_told_in_utc(monkeypatch):
    expires_at = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
    monkeypatch.setattr(sdk, "iam_token", lambda: ("t", expires_at))
    status = json.loads(sdk.exec_credential())["status"]
    assert status["expirationTimestamp"] == "2026-11-21T05:00:00Z"
