"""Copies of the jail: one account for one bucket, secrets nowhere open, a repository a password."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stacks.spec import StackSpec
from stacks.spec.storage import BackupSpec
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder
from tests.components.texts import open_texts

STACK = "h100-prod"
IAM = ("ServiceAccount", "Group", "GroupMembership", "AccessPermit")


@pytest.fixture
def recorder(deployed: Deploy) -> Recorder:
    return deployed(STACK)


@pytest.mark.parametrize("stack", ["local", "h200-elastic"])
def test_a_stack_without_backups_has_no_account_key_or_operator(
    deployed: Deploy, stack: str
) -> None:
    types = {each.type for each in deployed(stack).registered}
    assert not [each for each in types if "iam" in each or "random" in each or "time" in each]
    assert "k8up" not in {each.name for each in deployed(stack).registered}


def test_the_account_has_rights_on_its_bucket_and_on_nothing_else(recorder: Recorder) -> None:
    """The recipe puts it among the editors of the whole tenant."""
    group = f"group-{STACK}-backup-writers"
    permits = [
        each
        for each in recorder.of("nebius:iam/v1:AccessPermit")
        if each.inputs["metadata"]["parent_id"] == group
    ]
    assert sorted(each.inputs["spec"]["role"] for each in permits) == [
        "storage.object-editor",
        "storage.viewer",
    ]
    for permit in permits:
        assert permit.inputs["spec"]["resource_id"] == f"bucket-{STACK}-backups"
    member = recorder.one("nebius:iam/v1:GroupMembership", f"{STACK}-backup-writer")
    assert member.inputs["metadata"]["parent_id"] == group
    assert member.inputs["spec"]["member_id"] == f"serviceaccount-{STACK}-backup"


def test_the_key_is_the_accounts_and_ends(recorder: Recorder) -> None:
    spec = recorder.one("nebius:iam/v2:AccessKey", f"{STACK}-backup-key").inputs["spec"]
    assert spec == {
        "account": {"service_account": {"id": f"serviceaccount-{STACK}-backup"}},
        "expires_at": "2027-11-21T00:00:00Z",
        "secret_delivery_mode": "INLINE",
    }


def test_the_secret_has_the_names_that_k8up_is_told_and_every_earlier_password(
    recorder: Recorder,
) -> None:
    secret = recorder.one("kubernetes:core/v1:Secret", f"{STACK}-jail-backup")
    assert secret.inputs["metadata"] == {"name": "jail-backup", "namespace": "soperator"}
    assert secret.inputs["stringData"] == {
        "aws-access-key-id": "KEY-ID",
        "aws-access-secret-key": "HIDDEN access key",
        "backup-password": f"HIDDEN {STACK}-backup-password",
        "backup-password-old": "HIDDEN earlier",
    }
    assert not [text for text in open_texts(secret.sent) if "HIDDEN" in text]


def test_the_cluster_keeps_each_password_whatever_becomes_of_the_state(recorder: Recorder) -> None:
    """The `up` after a lost state file chooses another one, and writes over the other secret."""
    kept = recorder.one("kubernetes:core/v1:Secret", f"{STACK}-jail-backup-kept")
    fingerprint = f"fingerprint-{STACK}-backup-password"
    assert kept.inputs["metadata"] == {
        "name": f"jail-backup-{fingerprint}",
        "namespace": "soperator",
    }
    assert kept.inputs["stringData"] == {"backup-password": f"HIDDEN {STACK}-backup-password"}
    assert not [text for text in open_texts(kept.sent) if "HIDDEN" in text]
    assert kept.retain_on_delete


def test_the_schedule_writes_into_the_bucket_under_the_passwords_own_name(
    recorder: Recorder,
) -> None:
    """Restic refuses a repository that another password made."""
    schedule = recorder.one("kubernetes:k8up.io/v1:Schedule")
    s3 = schedule.inputs["spec"]["backend"]["s3"]
    assert s3["bucket"] == f"{STACK}-backups/fingerprint-{STACK}-backup-password"
    assert s3["endpoint"] == "https://storage.test:443"
    assert schedule.inputs["spec"]["prune"]["retention"]["keepDaily"] == 7
    (release,) = [each for each in recorder.registered if each.name == "k8up"]
    assert release.urn in schedule.depends_on


def test_k8up_copies_only_volumes_that_ask_for_it(recorder: Recorder) -> None:
    """Its default is every volume of the namespace, submounts of terabytes among them."""
    release = recorder.one("kubernetes:helm.sh/v3:Release", "k8up").inputs
    assert release["values"] == {"k8up": {"skipWithoutAnnotation": True}}
    assert (release["namespace"], release["createNamespace"]) == ("k8up-system", True)


def test_declared_times_and_versions_reach_their_resources(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load(STACK)
    backup = BackupSpec(
        keep_daily=3,
        size_gib=10,
        schedule="0 3 * * *",
        prune_schedule="@monthly",
        password_version=4,
        key_version=5,
        key_days=30,
    )
    recorder = deployed(replace(spec, storage=replace(spec.storage, backup=backup)))
    schedule = recorder.one("kubernetes:k8up.io/v1:Schedule").inputs["spec"]
    assert schedule["backup"]["schedule"] == "0 3 * * *"
    assert schedule["prune"]["schedule"] == "@monthly"
    assert recorder.one("soperator:random:Password").inputs == {"version": 4}
    expiry = recorder.one("soperator:time:Expiry", f"{STACK}-backup-key-end")
    assert expiry.inputs == {"days": 30, "version": 5}


def test_the_password_is_a_secret_output(recorder: Recorder) -> None:
    """Whoever destroys the stack keeps the copies; without the password they are noise."""
    assert "HIDDEN" in str(recorder.outputs["backup_password"])
    assert not [each for each in open_texts(recorder.outputs) if "HIDDEN" in each]
