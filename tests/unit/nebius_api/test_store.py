"""What the emulator acknowledged is still there after it died."""

import os
import shutil
import subprocess
import sys

import pytest

from infra.local.nebius_api.__main__ import Emulator
from infra.local.nebius_api.errors import ApiError
from infra.local.nebius_api.states import IDEMPOTENCY_S
from infra.providers.nebius.schema import Schema
from infra.state import CHECKOUT, Cache

FILESYSTEMS = "/nebius.compute.v1.FilesystemService/"
LOGIN = {"authorization": "Bearer local-token"}


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def start(folder, clock):
    """An emulator; the one before it on this folder was never closed, as after kill -9."""
    return Emulator(folder, latency_s=60, clock=clock, token="local-token")


def call(emulator, method, key=None, **fields):
    found = emulator.schema.methods[FILESYSTEMS + method]
    request = emulator.schema.message(found.input_type.full_name)(**fields)
    metadata = LOGIN | ({"x-idempotency-key": key} if key else {})
    return emulator.call(found, request, metadata)


def create(emulator, name, key=None):
    metadata = {"parent_id": "project-e00p", "name": name}
    spec = {"size_gibibytes": 1, "type": "NETWORK_SSD"}
    return call(emulator, "Create", key, metadata=metadata, spec=spec)


def test_resources_operations_and_keys_survive_the_process(tmp_path):
    clock = Clock()
    operation = create(start(tmp_path, clock), "jail", key="k")
    again = start(tmp_path, clock)
    assert create(again, "jail", key="k").id == operation.id
    assert call(again, "Get", id=operation.resource_id).status.state == 1  # CREATING
    clock.now += 61
    assert call(again, "Get", id=operation.resource_id).status.state == 2  # READY


@pytest.mark.parametrize("seconds", [0, 10, 61])
def test_a_slow_operation_lasts_as_long_as_its_fault_says(tmp_path, seconds):
    clock = Clock()
    emulator = start(tmp_path, clock)
    slow = {"method": "Create$", "code": "SLOW", "when": "operation", "seconds": seconds}
    emulator.faults.plant([slow])
    operations = [create(emulator, name) for name in ("slow", "usual")]
    clock.now += 11
    done = [emulator.store.operations[each.id].due <= clock.now for each in operations]
    assert done == [seconds < 11, False]


def test_an_operation_that_became_due_while_nothing_ran_is_finished(tmp_path):
    clock = Clock()
    operation = create(start(tmp_path, clock), "jail")
    clock.now += 3600
    again = start(tmp_path, clock)
    assert call(again, "Get", id=operation.resource_id).status.state == 2
    assert again.store.operations[operation.id].done


def test_a_refused_call_leaves_no_trace(tmp_path):
    clock = Clock()
    emulator = start(tmp_path, clock)
    create(emulator, "twin")
    with pytest.raises(ApiError, match="already exists"):
        create(emulator, "twin", key="k")
    again = start(tmp_path, clock)
    assert len(list(again.store.of_kind("computefilesystem"))) == 1
    assert again.store.remembered("anything", "k", clock.now) is None


def test_an_idempotency_key_is_forgotten_after_a_day(tmp_path):
    clock = Clock()
    emulator = start(tmp_path, clock)
    first = create(emulator, "a", key="k")
    clock.now += IDEMPOTENCY_S + 1
    assert create(emulator, "b", key="k").id != first.id


def test_a_second_start_seeds_nothing_anew(tmp_path):
    first = start(tmp_path, Clock())
    first.store.drop("quotaallowance-e00pcompute-disk-count")
    first.store.commit()
    assert start(tmp_path, Clock()).store.resources.keys() == first.store.resources.keys()


def test_what_it_reads_of_the_sdk_is_read_once_and_not_for_each_state(tmp_path):
    """It takes 3 s of CPU; without SOPERATOR_CACHE the cache is a folder of the home."""
    cache = tmp_path / ".cache" / "soperator-stack"
    cache.mkdir(parents=True)
    Schema()  # which writes them where they are not there
    for descriptors in Cache.from_environ().root.glob("nebius-*.fds"):
        shutil.copy(descriptors, cache)
    environ = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(CHECKOUT)}
    environ.pop("SOPERATOR_CACHE", None)
    command = [sys.executable, "-m", "infra.local.nebius_api", "--state", str(tmp_path / "state")]
    with subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, text=True, env=environ
    ) as emulator:
        assert "ready" in emulator.stdout.readline()
        emulator.kill()
    assert not [*(tmp_path / "state").glob("*.fds")]
