"""The certificate: dollars of each failure, what a reader needs, and a signature that holds."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from decimal import Decimal
from pathlib import Path

import pytest

from infra.clients.ssh_key import fingerprint, make_key_pair
from infra.reports.acceptance import certificate
from infra.reports.acceptance.certificate import accepting_usd, lost_share, rows, summary
from infra.reports.acceptance.run import AcceptError, Check, parse
from tests.unit.accept import acceptance

PRICES = {"worker-0": Decimal("17228.00"), "worker-1": Decimal("17228.00")}
HOSTILE = "<script>alert(1)</script></script>"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen (`make setup`)")
    path = tmp_path_factory.mktemp("key") / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def _content(text: str = "") -> dict[str, object]:
    made = acceptance.report(
        points=(acceptance.point(8, 41467.8), acceptance.point(16, 8572.6, 2)),
        extra=[acceptance.slow_gpu(), acceptance.dead_gpu(text)],
        text=text,
    )
    result = parse(acceptance.values(made), "made")
    return certificate.content(
        result, stack=f"h100-prod{text}", prices=PRICES, price_note="Prices: a book."
    )


def _check(id: str, **changes: object) -> Check:
    fields: dict[str, object] = {
        "id": id,
        "outcome": "FAIL",
        "subject": "x",
        "nodes": ("worker-0",),
        "measured": None,
        "unit": "",
        "limit": None,
        "context": {},
        "reason": "x",
    }
    return Check(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("check", "share"),
    [
        (_check("a.fact"), 1),
        # 630 of 700 TFLOP/s: a tenth of the node is paid for nothing.
        (_check("a.rate", measured=630.0, limit={"at_least": 700.0, "at_most": None}), 0.1),
        # A rank that takes 25 % longer wastes a fifth of every hour.
        (
            _check(
                "a.slow", measured=25.0, unit="percent", limit={"at_least": None, "at_most": 10.0}
            ),
            0.2,
        ),
        (_check("a.none", measured=0.0, limit={"at_least": 700.0, "at_most": None}), 1),
    ],
)
def test_the_lost_share_is_what_the_nodes_price_does_not_buy(check: Check, share: float) -> None:
    assert lost_share(check) == pytest.approx(Decimal(str(share)))
    assert accepting_usd(check, PRICES) == (PRICES["worker-0"] * Decimal(str(share))).quantize(
        Decimal("0.01")
    )


def test_what_passed_is_free_and_what_has_no_price_is_not_known() -> None:
    assert accepting_usd(_check("a.b", outcome="PASS"), PRICES) is None
    assert accepting_usd(_check("a.b", outcome="NOT_RUN"), PRICES) is None
    assert accepting_usd(_check("a.b"), {"worker-0": None}) is None
    assert accepting_usd(_check("a.b"), {}) is None


def test_a_cluster_that_scales_to_20_7_percent_costs_most_of_its_price() -> None:
    (found,) = (
        check for check in _content()["checks"] if check["id"] == "training.scaling_efficiency"
    )
    efficiency = Decimal(str(found["measured"]))
    assert Decimal(found["usd_per_month"]) == (
        (1 - efficiency / 90) * 2 * PRICES["worker-0"]
    ).quantize(Decimal("0.01"))
    assert Decimal(found["usd_per_month"]) > Decimal(26000)


@pytest.mark.feature("S001-03", "S001-56", "S001-57", "S001-58", "S004-44")
def test_the_page_has_date_nodes_ranks_memory_workload_and_sources(
    key: Path, tmp_path: Path
) -> None:
    values = _content()
    path = certificate.write(values, tmp_path / "c", key)
    page = path.read_text()
    for text in (
        *("FAIL", "measured 20", "worker-0", "master", "0-7", "8-15", "79.19", "1267.0 GiB"),
        *("decoder-163m", "batch 8", "sequence 512", "at least 90", "2025-12-15", "17,"),
    ):
        assert text in page or text in "\n".join(map(str, rows(values)))
    assert "<td>worker-0</td><td>master</td><td>8 ranks (0-7)</td>" in page
    assert "<td>worker-1</td><td>worker</td><td>8 ranks (8-15)</td>" in page
    assert "<p>16 ranks on 2 nodes over nccl;" in page
    assert "<th>Model</th><th>Batch a rank</th><th>Sequence</th>" in page
    whole = ("16", "2", "decoder-163m", "8", "512", "bf16", "137,162", "8,573")
    row = "".join(f"<td>{each}</td>" for each in whole)
    assert f"<tr>{row}</tr>" in page, "tokens of all GPUs, and of one"
    assert page.count("<svg") == 2
    assert 'id="plot-scaling-of-training-title"' in page
    assert not re.search(r'(src|href)="', page), "the page asks for nothing"
    assert json.loads(path.with_name("certificate.json").read_text())["outcome"] == "FAIL"


@pytest.mark.feature("S001-52", "S001-53", "S001-54", "S001-55")
def test_the_page_has_every_message_with_algbw_busbw_and_the_formula(
    key: Path, tmp_path: Path
) -> None:
    """The sweep was a curve of busbw alone: nobody could recompute it from the page."""
    values = _content()
    wire = {"device": "mlx5_0", "one": "worker-0", "other": "worker-1", "error": None}
    rows = values["measurements"]["collectives"]
    values["measurements"]["wires"] = [{**wire, "gbit_per_s": 387.61}]
    values["measurements"]["collectives"] = [*rows, {**rows[-1], "source": "nccl-tests"}]
    page = certificate.write(values, tmp_path / "c", key).read_text()
    assert "busbw is algbw times 2(n-1)/n (all_reduce)" in page
    # 8 GB at a busbw of 430 over 16 ranks: algbw is 430 / 1.875.
    assert "<td>8,000</td><td>34.88</td><td>229.3</td><td>430</td><td>0</td>" in page
    assert "<td>all_reduce</td><td>nccl-tests</td><td>2 nodes</td><td>16</td>" in page
    assert "<td>mlx5_0</td><td>worker-0</td><td>worker-1</td><td>387.6</td>" in page


def test_a_rehearsal_says_so_beside_its_outcome_and_shows_what_it_measured() -> None:
    values = json.loads(json.dumps(_content()))
    for node in values["nodes"]:
        node |= {"gpus": 0, "gpu_memory_gib": None, "ranks": node["ranks"][:1], "device": "cpu"}
    values |= {"outcome": "PASS", "checks": [c for c in values["checks"] if c["outcome"] == "PASS"]}
    html = certificate.render(values)
    assert '<span class="rehearsal">PASS (CPU rehearsal)</span></h1>' in html
    assert "<td>1 rank (0)</td>" in html
    assert summary(values)[-1].startswith("PASS (CPU rehearsal): ")
    shown = {row[1]: row[3] for row in rows(values)}
    assert shown["collectives.values"] == "yes; up to 430 GB/s"
    assert shown["readiness.all"] == "yes"
    assert "" not in shown.values()


def test_storage_is_told_of_the_place_that_the_check_is_of() -> None:
    places = [
        {"path": "/mnt/data", "write_gb_per_s": 1.5, "read_gb_per_s": 2.0},
        {"path": "/mnt/data2", "write_gb_per_s": 9.0, "read_gb_per_s": 9.0},
    ]
    check = {
        "id": "storage.data",
        "outcome": "PASS",
        "measured": None,
        "subject": "/mnt/data on 2 nodes at once",
    }
    told = certificate.measured_text(check, {"storage": places})
    assert told == "yes; write 1.5 GB/s, read 2 GB/s"


def test_foreign_text_is_escaped_everywhere(key: Path, tmp_path: Path) -> None:
    path = certificate.write(_content(HOSTILE), tmp_path / "c", key)
    signed = path.with_name("certificate.json")
    assert "<script>alert" not in path.read_text()
    public = certificate.public_key(key)
    assert certificate.verify(path, public) == certificate.verify(signed, public)


@pytest.mark.parametrize("name", ["certificate.json", "certificate.html"])
def test_an_edited_certificate_is_refused(name: str, key: Path, tmp_path: Path) -> None:
    path = certificate.write(_content(), tmp_path / "c", key).with_name(name)
    public = certificate.public_key(key)
    assert certificate.verify(path, public)["outcome"] == "FAIL"
    path.write_text(path.read_text().replace("20.67", "98.00"))
    with pytest.raises(AcceptError, match="not what was signed, or not by this key") as refused:
        certificate.verify(path, public)
    assert "\n" not in str(refused.value)


def test_another_signer_another_purpose_and_no_signature_are_refused(
    key: Path, tmp_path: Path
) -> None:
    signed = certificate.write(_content(), tmp_path / "c", key).with_name("certificate.json")
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    with pytest.raises(AcceptError, match="not by this key"):
        certificate.verify(signed, certificate.public_key(other))
    certificate.signature_of(signed).unlink()
    words = ["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "git", signed]
    subprocess.run(words, check=True, capture_output=True)
    with pytest.raises(AcceptError, match="not what was signed"):
        certificate.verify(signed, certificate.public_key(key))
    certificate.signature_of(signed).unlink()
    with pytest.raises(AcceptError, match=r"certificate\.json\.sig: no such file"):
        certificate.verify(signed, certificate.public_key(key))


def test_a_signer_is_one_key_and_is_named(key: Path, tmp_path: Path) -> None:
    """A second line was a second signer, who could have signed anything."""
    signed = certificate.write(_content(), tmp_path / "c", key).with_name("certificate.json")
    public = certificate.public_key(key)
    assert certificate.verify(signed, public)["signed_by"] == fingerprint(public)
    other = make_key_pair("other")[0]
    for signer in (f"{other}\n* {public}", f"{other}\n{public}", f"cert-authority {public}", ""):
        with pytest.raises(AcceptError, match="is not one key"):
            certificate.verify(signed, signer)
    old = {name: each for name, each in _content().items() if name != "evidence"}
    assert certificate.proof_text(old) == "made by a version that did not say what measured it"


def test_a_certificate_is_written_once_and_never_unsigned(key: Path, tmp_path: Path) -> None:
    certificate.write(_content(), tmp_path / "c", key)
    with pytest.raises(AcceptError, match="holds a certificate"):
        certificate.write(_content(), tmp_path / "c", key)
    with pytest.raises(AcceptError, match="no such key"):
        certificate.write(_content(), tmp_path / "d", tmp_path / "none")
    assert not (tmp_path / "d" / "certificate.json").exists()
    assert not (tmp_path / "d" / "certificate.html").exists()


def test_a_full_disk_leaves_no_half_of_a_certificate(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended in a traceback, with half of the page in the folder."""
    whole = certificate.sign

    def full_at_the_second(path: Path, key: Path) -> Path:
        if path.name == certificate.JSON_NAME:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(path, key)

    monkeypatch.setattr(certificate, "sign", full_at_the_second)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").touch()
    for name in ("new", "mine"):
        with pytest.raises(AcceptError, match=r"No space left on device; no certificate was wri"):
            certificate.write(_content(), tmp_path / name, key)
    assert not (tmp_path / "new").exists()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["kept"]


@pytest.mark.feature("S001-51")
def test_the_table_names_each_reason_and_ends_with_the_outcome() -> None:
    values = _content()
    found = {row[1]: row for row in rows(values)}
    assert found["readiness.gpus"][-1] == "17,228.00"
    assert found["compute.gemm"][3:] == ("630 TFLOP/s", "at least 700", "1,722.80")
    lines = summary(values)
    assert "readiness.gpus of worker-0: 7 of 8 GPUs" in lines
    assert "worker-1 (worker): 8 ranks (8-15), NVIDIA H100 80GB HBM3, 8 x 79.19 GiB" in lines
    assert lines[-1].startswith("FAIL: ")
