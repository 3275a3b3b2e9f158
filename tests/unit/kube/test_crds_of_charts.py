"""Definitions come out of a chart as a registry serves it, whole and verified, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infra.local.kube.api_server import load_crds
from infra.providers.nebius.sdk import ENDPOINT_VARIABLE
from infra.providers.soperator import crds
from infra.providers.soperator.crds import FOLDER, ChartError, crds_of, digests

GROUP = "slurm.nebius.ai"
CRD = b"""\
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec: {versions: [{name: v1}]}
---
kind: CustomResourceDefinition
metadata: {name: others.example.org}
spec: {versions: [{name: v1}]}
"""
FILES = {
    "helm-soperator/Chart.yaml": b"kind: Chart\n",
    "helm-soperator/crds/a.yaml": CRD,
    "helm-soperator/crds/README.md": b"text",
    "helm-soperator/templates/crds.yaml": b"kind: CustomResourceDefinition\nmetadata: {{ x }}\n",
    "helm-soperator/charts/kruise/crds/b.yaml": CRD.replace(b"example", b"kruise"),
}


class Registry:
    """An OCI registry with one chart of one version."""

    def __init__(self, files: Mapping[str, bytes], *, wants_token: bool = False) -> None:
        self.archive = archive(files)
        self.served = self.archive
        self.wants_token = wants_token
        self.tokens: list[str] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        digest = f"sha256:{hashlib.sha256(self.archive).hexdigest()}"
        layer = {
            "mediaType": "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
            "digest": digest,
        }
        if request.path.startswith("/token?"):
            self.tokens.append(request.path)
            return self.reply(request, 200, json.dumps({"token": "anybody"}).encode())
        if self.wants_token and request.headers.get("Authorization") != "Bearer anybody":
            challenge = f'Bearer realm="http://{self.address}/token",service="r",scope="pull"'
            return self.reply(request, 401, b"", {"WWW-Authenticate": challenge})
        if request.path == "/charts/index.yaml":
            return self.reply(request, 200, json.dumps({"entries": self.index(digest)}).encode())
        if request.path == "/charts/releases/things-4.8.10.tgz":
            return self.reply(request, 200, self.served)
        if request.path == "/v2/soperator/helm-soperator/manifests/4.1.7":
            return self.reply(request, 200, json.dumps({"layers": [layer]}).encode())
        if request.path == f"/v2/soperator/helm-soperator/blobs/{digest}":
            return self.reply(request, 200, self.served)
        return self.reply(request, 404, b"")

    def index(self, digest: str) -> dict[str, object]:
        """Versions of one chart as `helm repo index` writes them, with relative addresses."""
        versions = ("4.7.9", "4.8.9", "4.8.10", "4.8.11-rc1", "4.80.1")
        plain = digest.removeprefix("sha256:")
        return {
            "things": [
                {"version": each, "urls": [f"releases/things-{each}.tgz"], "digest": plain}
                for each in versions
            ]
        }

    def of_repository(self, version: str) -> list[dict[str, object]]:
        repository = f"http://{self.address}/charts"
        return crds_of("things", version, group=GROUP, repository=repository)

    def reply(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    def crds(self, version: str = "4.1.7") -> list[dict[str, object]]:
        source = f"oci://{self.address}/soperator/helm-soperator"
        return crds_of(source, version, group=GROUP, scheme="http")


def archive(files: Mapping[str, bytes]) -> bytes:
    """The chart as `helm package` packs it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture(autouse=True)
def _no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setenv(ENDPOINT_VARIABLE, "http://127.0.0.1:1")


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry(FILES)
    yield made
    made.server.shutdown()


def names(crds: list[dict[str, object]]) -> list[str]:
    return list(digests(crds))


def test_definitions_are_those_in_the_folder_of_the_chart_itself(registry: Registry):
    assert names(registry.crds()) == ["others.example.org", "things.example.org"]


def test_a_registry_that_wants_a_token_gives_one_to_everybody():
    registry = Registry(FILES, wants_token=True)
    assert len(registry.crds()) == 2
    assert registry.tokens[0] == "/token?service=r&scope=pull"


def test_a_repository_has_the_newest_release_of_a_minor_version(registry: Registry):
    """As Helm chooses: 4.8.10 is after 4.8.9, a pre-release and 4.80 are something else."""
    assert names(registry.of_repository("4.8.*")) == ["others.example.org", "things.example.org"]
    assert names(registry.of_repository("v4.8.10")) == names(registry.of_repository("4.8.*"))
    with pytest.raises(ChartError, match=r"things 4\.9\.\*: .* has no such version; see http"):
        registry.of_repository("4.9.*")
    with pytest.raises(ChartError, match=r"things 4\.7\.\*: http.*4\.7\.9\.tgz is not there"):
        registry.of_repository("4.7.*")
    with pytest.raises(ChartError, match=r"index\.yaml is not there; is it still a repository"):
        crds_of("things", "1", group=GROUP, repository=f"http://{registry.address}/other")
    registry.served = registry.archive[:-1] + b"x"
    with pytest.raises(ChartError, match="what came is not sha256:"):
        registry.of_repository("4.8.*")


def test_a_version_that_is_not_there_is_named(registry: Registry):
    with pytest.raises(ChartError, match=r"4\.9\.9: the registry has no such version"):
        registry.crds("4.9.9")


def test_an_archive_that_came_damaged_is_not_read(registry: Registry):
    registry.served = registry.archive[:-1] + b"x"
    with pytest.raises(ChartError, match="what came is not sha256:"):
        registry.crds()


@pytest.mark.parametrize("page", [b"<!doctype html><p a: b>Sign in", b"[1]", b"\xff", b'"x"'])
@pytest.mark.parametrize("where", ["/token", "/charts/index.yaml", "/v2/"])
def test_a_page_of_a_proxy_is_told_by_its_address(where: str, page: bytes):
    registry = Registry(FILES, wants_token=where == "/token")
    answer = registry.answer
    registry.answer = lambda request: (
        registry.reply(request, 200, page) if request.path.startswith(where) else answer(request)
    )
    ask = (
        registry.crds if where != "/charts/index.yaml" else lambda: registry.of_repository("4.8.*")
    )
    with pytest.raises(ChartError, match=f"{where}.* answers with something else") as refused:
        ask()
    assert "\n" not in str(refused.value)
    registry.server.shutdown()


def test_a_chart_without_definitions_is_refused():
    registry = Registry({"helm-soperator/Chart.yaml": b"kind: Chart\n"})
    with pytest.raises(ChartError, match="no CustomResourceDefinition in it"):
        registry.crds()


def test_a_registry_that_is_away_is_told_by_name():
    with pytest.raises(ChartError, match="no answer from the registry"):
        crds_of("oci://127.0.0.1:1/soperator/helm-soperator", "4.1.7", group=GROUP, scheme="http")


def test_a_registry_that_stays_busy_is_told_by_its_status(monkeypatch: pytest.MonkeyPatch):
    """It was "no answer from the registry: MaxRetryError", which sends people to their network."""
    monkeypatch.setattr(crds, "_RETRIES", crds._RETRIES.new(backoff_factor=0))
    registry = Registry(FILES)
    monkeypatch.setattr(registry, "answer", lambda request: registry.reply(request, 429, b""))
    with pytest.raises(ChartError, match="the registry answers HTTP 429"):
        registry.crds()
    registry.server.shutdown()


def test_an_address_of_tokens_that_is_busy_is_told_by_its_status(monkeypatch: pytest.MonkeyPatch):
    """It was told as HTTP 401 of the registry, which sends people to their passwords."""
    monkeypatch.setattr(crds, "_RETRIES", crds._RETRIES.new(backoff_factor=0))
    registry = Registry(FILES, wants_token=True)
    answer, busy = registry.answer, json.dumps({"errors": []}).encode()
    registry.answer = lambda request: (
        registry.reply(request, 503, busy) if request.path.startswith("/token") else answer(request)
    )
    with pytest.raises(ChartError, match="the registry's token: HTTP 503"):
        registry.crds()
    registry.server.shutdown()


def test_what_is_no_registry_is_refused():
    with pytest.raises(ChartError, match="is no chart in a registry"):
        crds_of("https://charts.example.org/x", "1", group=GROUP)


def test_a_folder_takes_the_place_of_the_registry(monkeypatch: pytest.MonkeyPatch):
    folder = Path(__file__).parents[3] / "infra/local/kube/crds"
    monkeypatch.setenv(FOLDER, str(folder))
    found = crds_of("oci://nowhere.invalid/chart", "4.1.7", group=GROUP)
    assert names(found) == sorted(
        crd["metadata"]["name"] for crd in load_crds() if crd["spec"]["group"] == GROUP
    )
    backups = crds_of("k8up", "4.8.*", group="k8up.io", repository="https://nowhere.invalid")
    assert "schedules.k8up.io" in names(backups)
    assert set(names(backups)).isdisjoint(names(found))


def test_a_chart_that_the_embedded_cloud_only_records_has_no_definitions_there(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv(FOLDER, str(Path(__file__).parents[3] / "infra/local/kube/crds"))
    group = "security-profiles-operator.x-k8s.io"
    assert crds_of("oci://nowhere.invalid/profiles", "0.8.5-soperator", group=group) == []


def test_a_real_cloud_never_gets_the_definitions_of_the_folder(
    monkeypatch: pytest.MonkeyPatch, registry: Registry
):
    """They are reduced: fields that they do not know would be dropped from objects."""
    monkeypatch.setenv(FOLDER, str(Path(__file__).parents[3] / "infra/local/kube/crds"))
    monkeypatch.delenv(ENDPOINT_VARIABLE)
    assert names(registry.crds()) == ["others.example.org", "things.example.org"]


def test_a_folder_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(FOLDER, str(tmp_path / "none"))
    with pytest.raises(ChartError, match="no such folder"):
        crds_of("oci://nowhere.invalid/chart", "4.1.7", group=GROUP)
