"""Whose jobs a private key submits, and where they keep what they make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import public_line

OUTPUTS = StackOutputs(
    stack="local",
    login_ip="127.0.0.1",
    ssh_port=30022,
    login_host_key="ssh-ed25519 AAAA",
    code_path="/opt/code",
    code_hash="0123456789abcdef",
    places={"logs": "/mnt/logs", "scratch": "/mnt/memory/scratch"},
    jobs={},
)


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    path = tmp_path / "identity"
    paramiko.ECDSAKey.generate().write_private_key_file(str(path))
    return path


def of(identity: Path, *users: str) -> StackOutputs:
    """The outputs of a stack where these users have this key, and `other` has another."""
    keys = dict.fromkeys(users, (f"{public_line(identity)} who@where",))
    return replace(OUTPUTS, users={"other": ("ssh-ed25519 AAAA",), **keys})


def test_the_owner_of_the_key_has_places_and_code_of_its_own(identity: Path) -> None:
    ann = of(identity, "ann").as_owner_of(identity)
    assert ann.user == "ann"
    assert ann.places == {"logs": "/mnt/logs/users/ann", "scratch": "/mnt/memory/scratch"}
    assert ann.shared == OUTPUTS.places
    assert ann.own_path.endswith("/ann/.soperator/local")
    assert ann.log_path("finetune", "12") == "/mnt/logs/users/ann/finetune_12.log"


def test_a_person_who_is_deployer_and_user_submits_as_the_deployer(identity: Path) -> None:
    assert of(identity, "deployer", "ann").as_owner_of(identity).user == "deployer"


def test_a_key_of_nobody_is_refused_with_who_there_is(identity: Path) -> None:
    with pytest.raises(JobsError, match=r"no user of local has this key \(other\); give"):
        of(identity).as_owner_of(identity)


def test_a_stack_of_before_is_told_to_come_up_once(identity: Path) -> None:
    with pytest.raises(
        JobsError,
        match="its outputs name no users, so jobs there still run as root; run `pulumi up",
    ):
        OUTPUTS.as_owner_of(identity)
