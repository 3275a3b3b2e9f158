"""Parts of a support bundle that this machine has: without secrets, and none that cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.operate import support_bundle as collect
from infra.operate.support_bundle import NotRunError
from infra.state import State

SECRET = "planted-secret-value"


def test_a_stack_file_goes_without_what_the_engine_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Pulumi.mine.yaml").write_text(
        "config:\n  soperator-stack:prices: nebius\n  soperator-secrets:slack_webhook_url:\n"
        "    secure: v1:abcdefgh:ijklmnop\nencryptionsalt: v1:abc=:v1:def\n"
    )
    monkeypatch.setattr(collect, "STACKS_DIR", tmp_path)
    text = collect.stack_file("mine")
    assert "prices: nebius" in text
    assert "v1:" not in text
    with pytest.raises(NotRunError, match="there is no such file"):
        collect.stack_file("absent")


def test_resources_are_names_and_ids_alone() -> None:
    inputs = f'"inputs": {{"a": "{SECRET}"}}, "outputs": {{"b": "x"}}'
    state = f'{{"deployment": {{"resources": [{{"urn": "u", "id": "i", {inputs}}}]}}}}'
    text = collect.resources(f"warning: x\n{state}\n")
    assert '"urn": "u"' in text
    assert SECRET not in text


def test_a_stack_that_the_engine_does_not_have_is_not_run_with_its_words() -> None:
    assert collect.succeeded("{}\nexit status 0\n") == "{}"
    with pytest.raises(NotRunError, match=r"^error: no stack named x$"):
        collect.succeeded("warning: y\nerror: no stack named x\n\nexit status 255\n")


@pytest.mark.parametrize(("stack", "has_local"), [("local", True), ("h100-prod", False)])
def test_the_embedded_cloud_is_asked_for_its_own_stack_only(
    tmp_path: Path, stack: str, has_local: bool
) -> None:
    """Else each bundle of a cloud would lack parts that it cannot have."""
    parts = collect.parts_here(stack, State(tmp_path), {}, preview=True)
    names = {each.name for each in parts}
    assert ("local.txt" in names) is has_local
    assert "preview.txt" in names


def test_a_new_checkout_has_nothing_to_tell_and_says_so(tmp_path: Path) -> None:
    assert collect.runs(tmp_path / "absent") == "nothing was submitted from this checkout\n"
    assert collect.tails(tmp_path) == "there are no logs\n"


def test_runs_and_logs_are_the_newest_and_their_ends(tmp_path: Path) -> None:
    for number in range(12):
        folder = tmp_path / "runs" / f"{number:02d}"
        folder.mkdir(parents=True)
        (folder / "run_record.json").write_text(f"record {number}")
        os.utime(folder / "run_record.json", (number, number))
    text = collect.runs(tmp_path / "runs")
    assert "record 11" in text
    assert "record 1\n" not in text
    (tmp_path / "long.log").write_text("password: " + "x" * 65_530 + "\nlast\nEND")
    assert collect.tails(tmp_path) == "==> long.log <==\nlast\nEND\n"
