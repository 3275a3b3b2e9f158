"""A run that one of a team pulled is seen by the others, through the stack's bucket."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from infra.cli.jobs import data as verb
from infra.clients.errors import JobsError
from infra.clients.objects import Place
from infra.reports.runs.run import SHARED, bring, publish, shared_name
from tests.unit.cost.run_stacks import CLUSTER, actual_entry, at
from tests.unit.jobs.test_submit import OUTPUTS
from tests.unit.object_storage.conftest import Storage
from tests.unit.object_storage.test_stored_run_configs import opened
from tests.unit.runs.folders import runs, write_run


def test_a_run_is_seen_by_others_with_its_cost_settings_and_losses(
    storage: Storage, tmp_path: Path
) -> None:
    anna, ben = tmp_path / "anna", tmp_path / "ben"
    folder = write_run(anna, "2", cluster=CLUSTER)
    ended = actual_entry("2", "7.25", at(5), at(6))
    store = opened(storage)
    assert publish(store, folder, cluster=CLUSTER, job_id="2", actual=ended) == 5
    assert publish(store, folder, cluster=CLUSTER, job_id="2", actual=ended) == 0
    assert bring(store, ben, "local") == 5
    assert bring(store, ben, "local") == 0
    (seen,) = runs(ben)
    assert seen.name.startswith("2@")
    assert (seen.usd, seen.method, len(seen.losses)) == (Decimal("7.25"), "lora", 3)
    later = actual_entry("2", "8.25", at(5), at(6))
    assert publish(store, folder, cluster=CLUSTER, job_id="2", actual=later) == 1
    assert bring(store, ben, "local") == 1, "as long as before, and not the same"
    assert runs(ben)[0].usd == Decimal("8.25")
    # Whoever pulled it has it once, under its own name.
    bring(store, anna, "local")
    assert [run.name for run in runs(anna)] == ["2"]


def test_a_record_that_changed_within_its_length_is_brought_and_one_that_did_not_is_not_read(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ben = opened(storage), tmp_path / "ben"
    folder = write_run(tmp_path / "anna", "2", cluster=CLUSTER)
    publish(store, folder, cluster=CLUSTER, job_id="2", actual=None)
    bring(store, ben, "local")
    record = folder / "run_record.json"
    record.write_text(record.read_text().replace("400.0", "500.0"))
    assert publish(store, folder, cluster=CLUSTER, job_id="2", actual=None) == 1
    read: list[str] = []
    whole = Place.read

    def counted(place: Place) -> bytes | None:
        read.append(place.key.rpartition("/")[2])
        return whole(place)

    monkeypatch.setattr(Place, "read", counted)
    assert bring(store, ben, "local") == 1
    assert read == ["run_record.json"]
    (ben / "runs" / "local" / SHARED / shared_name(CLUSTER, "2") / ".tags.json").write_text("{")
    assert (bring(store, ben, "local"), len(read)) == (0, 5), "damaged: looked at, not written"
    assert runs(ben)[0].record.metrics["train_tokens_per_s"] == 500


def test_only_small_files_of_a_run_are_brought_whatever_lies_in_the_bucket(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(storage)
    monkeypatch.setattr("infra.reports.runs.run._MOST_BYTES", 10)
    for name in (
        "2-0123abcd/load.json",
        "2-0123abcd/recipe.json.exe",
        "2/load.json",
    ):
        Place(key=f"records/{name}", **store).write(b"0123456789")
    Place(key="records/3-0123abcd/load.json", **store).write(b"0123456789+")
    assert bring(store, tmp_path / "ben", "local") == 1
    (came,) = (path for path in (tmp_path / "ben").rglob("[!.]*") if path.is_file())
    assert came.parent.name == "2-0123abcd"


def test_a_pull_shares_the_run_and_a_bucket_that_refuses_costs_no_result(
    storage: Storage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "anna"))
    write_run(tmp_path / "anna", "2", cluster=OUTPUTS.login_host_key)
    keys = iter([None, opened(storage, "copies"), opened(storage)])
    monkeypatch.setattr("infra.cli.context.run_config_store", lambda _: next(keys))
    for said in ("", "job 2: others do not see it: job 2: its record is not in the bucket", ""):
        verb._share(OUTPUTS, "local", "2")
        told = capsys.readouterr().err
        assert told.startswith(said)
        assert bool(told) == bool(said)
    assert bring(opened(storage), tmp_path / "ben", "local") == 4


def test_a_run_without_a_record_is_not_shared(storage: Storage, tmp_path: Path) -> None:
    store = opened(storage)
    assert publish(store, tmp_path, cluster=CLUSTER, job_id="2", actual=None) == 0
    assert bring(store, tmp_path / "other", "local") == 0


def test_a_key_without_rights_is_refused_with_what_to_do(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(JobsError, match="`pulumi up` renews the key"):
        bring(opened(storage, "copies"), tmp_path, "local")
