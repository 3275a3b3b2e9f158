"""The kubeconfig: one server, its CA, and a token made on demand."""

from __future__ import annotations

import base64
import json

from infra.render.nodes import kubeconfig

CA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
CONFIG = json.loads(kubeconfig(name="dev-kube", endpoint="https://1.2.3.4:443", ca_certificate=CA))


def test_it_holds_the_server_and_its_certificate() -> None:
    (cluster,) = CONFIG["clusters"]
    assert cluster["cluster"]["server"] == "https://1.2.3.4:443"
    data = cluster["cluster"]["certificate-authority-data"]
    assert base64.b64decode(data, validate=True).decode() == CA


def test_the_current_context_leads_to_the_cluster_and_the_user() -> None:
    (context,) = CONFIG["contexts"]
    assert CONFIG["current-context"] == context["name"] == "dev-kube"
    assert context["context"]["cluster"] == CONFIG["clusters"][0]["name"]
    assert context["context"]["user"] == CONFIG["users"][0]["name"]


def test_it_holds_no_token_but_the_command_that_makes_one() -> None:
    """A written token ends after hours, and lies in the state for as long."""
    (user,) = CONFIG["users"]
    assert list(user["user"]) == ["exec"]
    run = user["user"]["exec"]
    assert [run["command"], *run["args"]] == ["soperator", "kube-token"]


def test_the_command_is_of_the_api_version_that_needs_an_interactive_mode() -> None:
    """Clients refuse client.authentication.k8s.io/v1 without interactiveMode."""
    run = CONFIG["users"][0]["user"]["exec"]
    assert run["apiVersion"] == "client.authentication.k8s.io/v1"
    assert run["interactiveMode"] == "Never"
