"""A kubeconfig leads to a server, its trust and a token, or says why it does not."""

from __future__ import annotations

import base64
import json
import sys

import pytest

from infra.clients.kube import KubeconfigError, read_kubeconfig


def config(**user):
    return {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1/"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def exec_user(program):
    return {"exec": {"command": sys.executable, "args": ["-c", program]}}


def test_a_kubeconfig_names_server_and_token():
    access = read_kubeconfig(json.dumps(config(token="t")))
    assert access.server == "https://127.0.0.1:1"
    assert access.token() == "t"


def test_certificate_data_is_decoded():
    value = config(token="t")
    value["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(
        b"PEM"
    ).decode()
    assert read_kubeconfig(json.dumps(value)).ca_pem == "PEM"


def test_an_exec_credential_runs_once_while_its_token_is_valid(tmp_path):
    counter = tmp_path / "runs"
    program = (
        f"open({str(counter)!r}, 'a').write('x'); "
        """print('{"status": {"token": "t", "expirationTimestamp": "2999-01-01T00:00:00Z"}}')"""
    )
    access = read_kubeconfig(json.dumps(config(**exec_user(program))))
    assert [access.token(), access.token()] == ["t", "t"]
    assert counter.read_text() == "x"


def test_an_exec_credential_that_expired_runs_again(tmp_path):
    counter = tmp_path / "runs"
    program = (
        f"open({str(counter)!r}, 'a').write('x'); "
        """print('{"status": {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}}')"""
    )
    access = read_kubeconfig(json.dumps(config(**exec_user(program))))
    assert [access.token(), access.token()] == ["t", "t"]
    assert counter.read_text() == "xx"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("/no/such/file", "JSONDecodeError: "),
        ('{"clusters": ', "JSONDecodeError: "),
        ('{"kind": "Config"}', "KeyError: 'clusters'"),
        (json.dumps({**config(), "users": []}), "IndexError: "),
        ("[]", "TypeError: "),
    ],
)
def test_a_kubeconfig_that_leads_nowhere_is_refused(content, message):
    with pytest.raises(
        KubeconfigError, match=rf"not as the program writes it: {message}.*pulumi up"
    ):
        read_kubeconfig(content)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('no credentials')", "ended with 1: no credentials"),
        ("print('hello')", "printed no ExecCredential with a token"),
    ],
)
def test_an_exec_credential_that_gives_no_token_is_named(program, message):
    access = read_kubeconfig(json.dumps(config(**exec_user(program))))
    with pytest.raises(KubeconfigError, match=message):
        access.token()
