"""Run configs in object storage: every recipe of the stack, under its hash, by a key of its own."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath

import pytest

from infra.state import CHECKOUT
from stacks.spec.slurm import RECIPE_ENDINGS
from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder
from tests.components.texts import open_texts

STACK = "h100-prod"
OBJECT = "soperator:storage:Object"
SECRET = "1b47061264138c4ac30d75fd1eb44270"
"""How the engine's protocol marks a value as secret."""


@pytest.fixture
def recorder(deployed: Deploy) -> Recorder:
    return deployed(STACK)


@pytest.mark.parametrize("stack", SHIPPED)
def test_objects_are_made_where_a_bucket_for_them_is_declared(deployed: Deploy, stack: str) -> None:
    recorder = deployed(stack)
    buckets = {each.name for each in recorder.of("nebius:storage/v1:Bucket")}
    assert bool(recorder.of(OBJECT)) is (f"{stack}-configs" in buckets)


def test_every_recipe_of_a_job_and_the_stack_itself_is_stored_under_its_hash(
    recorder: Recorder,
) -> None:
    recipes = {
        f"recipes/{path.stem}"
        for path in (CHECKOUT / "workloads" / "recipes").iterdir()
        if path.suffix in RECIPE_ENDINGS
    }
    found = {str(PurePosixPath(each.inputs["key"]).parent) for each in recorder.of(OBJECT)}
    assert "configs/stack" in found
    assert found - {"configs/stack"} <= recipes
    assert found - {"configs/stack"}
    for each in recorder.of(OBJECT):
        digest = hashlib.sha256(each.inputs["content"].encode()).hexdigest()
        assert PurePosixPath(each.inputs["key"]).stem == digest[:16]


@pytest.mark.feature("S002-66")
def test_an_object_outlives_its_declaration(recorder: Recorder) -> None:
    assert all(each.retain_on_delete for each in recorder.of(OBJECT))


def test_the_uploads_key_has_one_right_on_one_bucket(recorder: Recorder) -> None:
    permits = [
        each.inputs["spec"]
        for each in recorder.of("nebius:iam/v1:AccessPermit")
        if each.name.startswith(f"{STACK}-config-upload")
    ]
    assert permits == [{"resource_id": f"bucket-{STACK}-configs", "role": "storage.object-editor"}]
    key = recorder.one("nebius:iam/v2:AccessKey", f"{STACK}-config-upload-key")
    account = {"service_account": {"id": f"serviceaccount-{STACK}-config-upload"}}
    assert key.inputs["spec"]["account"] == account


def test_the_secret_of_the_key_is_nowhere_open(recorder: Recorder) -> None:
    for each in recorder.of(OBJECT):
        assert each.inputs["secret_access_key"] == "HIDDEN access key"
        assert not [text for text in open_texts(each.sent) if "HIDDEN" in text]


@pytest.mark.feature("S002-13")
def test_submissions_can_open_the_bucket_by_a_secret_output(recorder: Recorder) -> None:
    """Whoever may read the stack's secrets stores the config of a run beside the recipes."""
    (first, *_) = recorder.of(OBJECT)
    store = recorder.outputs["run_config_store"]
    assert SECRET in store.values(), "not shown by pulumi stack output, and encrypted in the state"
    assert store["value"] == {
        name: first.inputs[name]
        for name in ("endpoint", "region", "bucket", "access_key_id", "secret_access_key")
    }


def test_the_output_says_which_key_each_config_has(recorder: Recorder) -> None:
    keys = set(recorder.outputs["run_configs"].values())
    assert keys == {each.inputs["key"] for each in recorder.of(OBJECT)}
