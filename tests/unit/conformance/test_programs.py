"""A program of upstream that ends, hangs or cannot be run is a line of a step, not a traceback."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.clients.kube import Access
from infra.operate.conformance import come_up, sources
from infra.operate.conformance.cluster import Accepted, ApiServer, OperatorError, soperator
from infra.operate.conformance.come_up import STEPS, ComeUp, Step, declared
from infra.operate.conformance.sources import Helm, NotRunError, RenderError, Sources
from stacks.load import load_stack
from tests.conformance.chart_values import without_effect
from tests.ports import free_ports

RENDERED = [
    {
        "kind": "Deployment",
        "spec": {
            "template": {"spec": {"containers": [{"name": "manager", "args": [], "env": []}]}}
        },
    }
]


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def server(tmp_path) -> ApiServer:
    certificate = tmp_path / "tls"
    certificate.write_text("")
    access = Access(server="https://127.0.0.1:1", ca_pem="")
    return ApiServer(access=access, certificate=certificate, key=certificate)


def start(path: Path, server: ApiServer, folder: Path) -> None:
    with ExitStack() as stack:
        cluster = SimpleNamespace(server=server)
        stack.enter_context(soperator(path, RENDERED, cluster=cluster, folder=folder))


@pytest.fixture(autouse=True)
def webhook_port(monkeypatch):
    (port,) = free_ports(1)
    monkeypatch.setattr("infra.operate.conformance.cluster._WEBHOOK_PORT", port)


def test_an_operator_that_has_ended_is_not_waited_for(server, tmp_path):
    path = program(tmp_path / "it", "#!/bin/sh\necho 'ERROR no such flag'\nexit 3\n")
    with pytest.raises(OperatorError) as refused:
        start(path, server, tmp_path / "run")
    assert str(refused.value) == "the operator ended with code 3: ERROR no such flag"


@pytest.mark.parametrize("what", ["operator", "helm"])
def test_a_program_that_this_machine_cannot_run_is_not_run(what, server, tmp_path):
    path = program(tmp_path / "it", "no program of any machine\n")
    calls = {
        "helm": lambda: Helm(path, tmp_path).run(["version"]),
        "operator": lambda: start(path, server, tmp_path / "run"),
    }
    with pytest.raises(NotRunError, match="it cannot be run: Exec format error"):
        calls[what]()


def test_an_operator_that_does_not_start_is_what_stops_the_stack(
    server, tmp_path, monkeypatch, public_key_file
):
    (tmp_path / "soperator").mkdir()
    (tmp_path / "soperator" / "VERSION").write_text("4.1.7\n")
    text = "#!/bin/sh\necho 'ERROR no such flag'\nexit 3\n"
    program(tmp_path / "bin" / "soperator-operator", text)
    for name in ("rendered", "accepted"):
        step = Step(name=name, counted="1 object")
        monkeypatch.setattr(ComeUp, name, lambda *_, step=step: step)
    monkeypatch.setattr(ComeUp, "of_release", lambda *_: RENDERED)
    monkeypatch.setattr(come_up, "declared", lambda *_: None)
    monkeypatch.setattr(come_up, "definitions", lambda *_: ([], {"k8up": "no checkout of it"}))
    steps = list(ComeUp(Sources(tmp_path)).steps(load_stack("h100-prod"), server, tmp_path / "f"))
    assert [each.name for each in steps] == list(STEPS)
    assert [each.outcome for each in steps] == ["PASS", "PASS", "FAIL", *["NOT RUN"] * 4]
    (why,) = steps[2].obstacles
    assert str(why) == ("release soperator: the operator ended with code 3: ERROR no such flag")


@pytest.mark.parametrize("absent", ["kruise", "mariadb-operator", "prometheus-operator"])
def test_an_operator_without_a_kind_that_it_watches_is_not_started(
    absent, server, tmp_path, monkeypatch, public_key_file
):
    """It would end, or wait for ever, and the stack would be said not to come up."""
    (tmp_path / "soperator").mkdir()
    (tmp_path / "soperator" / "VERSION").write_text("4.1.7\n")
    program(tmp_path / "bin" / "soperator-operator", "#!/bin/sh\nexit 3\n")
    for name in ("rendered", "accepted"):
        step = Step(name=name, counted="1 object")
        monkeypatch.setattr(ComeUp, name, lambda *_, step=step: step)
    monkeypatch.setattr(ComeUp, "of_release", lambda *_: RENDERED)
    monkeypatch.setattr(come_up, "declared", lambda *_: None)
    every = come_up.definitions

    def others(*arguments):
        found, missing = every(*arguments)
        return found, {absent: missing[absent]}

    monkeypatch.setattr(come_up, "definitions", others)
    steps = list(ComeUp(Sources(tmp_path)).steps(load_stack("h100-prod"), server, tmp_path / "f"))
    assert [each.outcome for each in steps] == ["PASS", "PASS", *["NOT RUN"] * 5]
    (why,) = {text for each in steps for text in each.not_run}
    assert why.startswith(f"no checkout {tmp_path / absent}: git clone ")


def test_a_release_that_was_not_rendered_is_named_with_what_it_lacks(tmp_path, public_key_file):
    program(tmp_path / "bin" / "helm", "#!/bin/sh\nexit 1\n")
    way = ComeUp(Sources(tmp_path))
    step = way.rendered(declared(load_stack("h100-prod"), tmp_path / "build"), tmp_path)
    with pytest.raises(NotRunError) as refused:
        way.of_release("k8up")
    assert str(refused.value).startswith(f"no checkout {tmp_path}/k8up: git clone ")
    assert str(refused.value) in step.not_run


def test_a_helm_that_hangs_is_named_and_says_nothing_of_a_value(tmp_path, monkeypatch):
    helm = Helm(program(tmp_path / "helm", "#!/bin/sh\nexec sleep 600\n"), tmp_path)
    monkeypatch.setattr(sources, "_TIMEOUT_S", 0.1)
    with pytest.raises(RenderError, match=r"^helm version did not end within 0\.1 s$"):
        helm.run(["version"])
    told, hangs = iter([True]), Helm.text
    monkeypatch.setattr(Helm, "text", lambda *given: "it" if next(told, False) else hangs(*given))
    monkeypatch.setattr(Helm, "copied", lambda self, chart: chart)
    with pytest.raises(RenderError, match=r"^helm template did not end within 0\.1 s$"):
        without_effect(helm, tmp_path, "a", "b", {"c": 1})


@pytest.mark.parametrize(
    ("counted", "not_run", "outcome"),
    [("1 pod", (), "PASS"), ("1 pod", ("no chart",), "NOT RUN"), ("", ("no chart",), "NOT RUN")],
)
def test_a_step_that_lacked_something_is_not_run(counted, not_run, outcome):
    assert Step(name="rendered", counted=counted, not_run=not_run).outcome == outcome


@pytest.mark.parametrize(("admitted", "made"), [(0, 0), (0, 1), (1, 0)])
def test_an_operator_that_was_given_nothing_or_made_nothing_is_not_run(
    admitted, made, tmp_path, monkeypatch
):
    monkeypatch.setattr(come_up, "reconciled", lambda *_, **__: None)
    live = [{"metadata": {"ownerReferences": [{}]}}] * made
    monkeypatch.setattr(ComeUp, "_look", lambda *_: live)
    cluster = SimpleNamespace(accept=lambda *_: Accepted(count=admitted), client=None)
    declared = SimpleNamespace(spec=SimpleNamespace(cluster=SimpleNamespace(namespace="a")))
    step = ComeUp(Sources(tmp_path)).reconciled(declared, cluster, tmp_path)
    assert step.outcome == "NOT RUN"
    assert step.not_run == (f"nothing to see: {admitted} objects admitted, {made} made of them",)


def test_what_its_user_makes_is_said_to_be_assumed(tmp_path, monkeypatch, public_key_file):
    monkeypatch.setattr(come_up, "apply_crds", lambda *_: None)
    spec = load_stack("all-keys", Path(__file__).parents[2] / "conformance")
    nothing = SimpleNamespace(
        client=None, need_namespace=lambda _: None, accept=lambda *_: Accepted(count=1)
    )
    step = ComeUp(Sources(tmp_path)).accepted(declared(spec, tmp_path / "build"), nothing, (), ())
    maps = sorted({each.sshd_config_map for each in spec.nodes.workers} - {None})
    place = spec.cluster.namespace
    assert step.assumed == (
        *(f"ConfigMap {place}/{name} with key sshd_config" for name in maps),
        f"Secret {place}/sssd-conf with key sssd.conf",
        f"ConfigMap {place}/sssd-ca with key ca.crt",
    )
    assert maps
