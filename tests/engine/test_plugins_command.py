"""The stand-in for pulumi-command does over a real sshd what the official plugin does."""

import re
import subprocess
import threading
import time

import pytest

from infra.local.plugins import command
from infra.local.plugins.command import COPY, REMOTE, CommandProvider
from infra.providers.engine.provider import UNKNOWN, ProviderError
from tests.conformance.command_cases import archive
from tests.engine.sshd import running_sshd

pytestmark = pytest.mark.engine
URN = "urn:pulumi:dev::proj::command:remote:Command::ready"


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def plugin():
    return CommandProvider()


@pytest.fixture
def lines(plugin):
    told = []

    class Log:
        def info(self, urn, line, *, passing=False):
            told.extend([] if passing else [line])

    plugin.engine = Log()
    return told


def remote(sshd, **inputs):
    """Inputs of a command, as the program has them."""
    return {"connection": sshd.connection(), "addPreviousOutputInEnv": False, **inputs}


def test_create_runs_once_and_keeps_its_output(plugin, sshd, lines):
    inputs = remote(sshd, create="echo one; echo two >&2")
    id_, state = plugin.of(REMOTE).create(URN, inputs)
    assert id_.startswith("ready")
    assert (state["stdout"], state["stderr"]) == ("one", "two")
    assert sorted(lines) == ["one", "two"]


def test_a_large_output_arrives_whole(plugin, sshd):
    _, state = plugin.of(REMOTE).create(URN, remote(sshd, create="seq 1 100000"))
    assert state["stdout"].splitlines() == [str(i) for i in range(1, 100001)]


def test_a_preview_runs_nothing_and_leaves_the_output_open(plugin, sshd, tmp_path):
    inputs = remote(sshd, create=f"touch {tmp_path}/made")
    state = plugin.of(REMOTE).preview(URN, "", {}, inputs)
    after = plugin.of(REMOTE).preview(URN, "x", {**inputs, "stdout": "o"}, inputs)
    assert state["stdout"] is after["stdout"] is UNKNOWN
    assert not (tmp_path / "made").exists()


def test_an_update_runs_create_again(plugin, sshd):
    old = remote(sshd, create="echo one", stdout="one", stderr="")
    assert (
        plugin.of(REMOTE).update(URN, "x", old, remote(sshd, create="echo two"))["stdout"] == "two"
    )


def test_an_end_runs_nothing(plugin, sshd, tmp_path):
    _, state = plugin.of(REMOTE).create(URN, remote(sshd, create=f"echo >> {tmp_path}/runs"))
    plugin.of(REMOTE).delete("x", state)
    assert (tmp_path / "runs").read_text() == "\n"


def test_bytes_that_are_no_text_and_an_empty_last_line_stay(plugin, sshd, lines):
    _, state = plugin.of(REMOTE).create(URN, remote(sshd, create=r"printf 'a\377\n\nb\r\n\n'"))
    assert state["stdout"] == "a\ufffd\n\nb\r\n"
    assert lines == ["a\ufffd", "", "b\r", ""]


def test_three_files_of_one_key_offer_its_type_alone(sshd, tmp_path):
    """Soperator's sshd_config names an RSA, an ECDSA and an Ed25519 file; we have one pair."""
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key}")
    argv = ["ssh", "-vv", "-F", "/dev/null", "-p", str(sshd.port), "-o", "BatchMode=yes"]
    argv += ["-o", f"UserKnownHostsFile={known}", "-o", "StrictHostKeyChecking=yes", "127.0.0.1"]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60).stderr
    server = said.partition("peer server KEXINIT proposal")[2]
    offered = re.search(r"host key algorithms: (.*)", server)
    assert offered is not None, said
    assert set(offered[1].split(",")) == {"ssh-ed25519"}
    assert f"Host '[127.0.0.1]:{sshd.port}' is known and matches the ED25519 host key." in said


def test_cancel_ends_a_running_command(plugin, sshd, lines):
    inputs = {"create": "echo started; exec sleep 600", "connection": sshd.connection()}
    timer = threading.Timer(0.5, plugin.cancelled.set)
    timer.start()
    with pytest.raises(ProviderError, match=r"^cancelled"):
        plugin.of(REMOTE).create(URN, inputs)
    timer.join()


def test_cancel_ends_a_command_that_has_closed_its_output(plugin, sshd, monkeypatch):
    ended, text = threading.Semaphore(0), command._text

    def read(*stream_and_say):
        whole = text(*stream_and_say)
        ended.release()
        return whole

    def cancel():
        for _stream in ("stdout", "stderr"):
            ended.acquire()
        time.sleep(0.2)
        plugin.cancelled.set()

    monkeypatch.setattr(command, "_text", read)
    inputs = {"create": "exec <&- >&- 2>&-; exec sleep 20", "connection": sshd.connection()}
    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(ProviderError, match=r"^cancelled"):
        plugin.of(REMOTE).create(URN, inputs)
    canceller.join()


def copied(sshd, source, target, **inputs):
    """Inputs of a copy of a folder's content."""
    there = {"connection": sshd.connection(), "remotePath": str(target)}
    return {**there, "source": archive(path=f"{source}/", **inputs)}


def test_the_content_of_a_folder_lands_in_the_remote_folder(plugin, sshd, tmp_path):
    source = tmp_path / "code"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "deep" / "a.py").write_text("a")
    target = tmp_path / "new" / "place"
    plugin.of(COPY).create(URN, copied(sshd, source, target))
    assert (target / "deep" / "a.py").read_text() == "a"
    assert (target / "deep" / "empty").is_dir()


def test_a_folder_onto_a_file_is_refused(plugin, sshd, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "code").mkdir()
    with pytest.raises(ProviderError, match="exists but is not a directory"):
        plugin.of(COPY).create(URN, copied(sshd, tmp_path / "code", tmp_path / "file"))


def test_a_copy_is_repeated_only_for_new_content_or_a_new_place(plugin, sshd, tmp_path):
    source, target = tmp_path / "code", tmp_path / "there"
    source.mkdir()
    (source / "conf").write_text("2")
    old = copied(sshd, source, target, hash="1")
    same = {**old, "connection": sshd.connection(dialErrorLimit=3)}
    assert plugin.of(COPY).diff("x", old, old, same).replaces == ()
    plugin.of(COPY).update(URN, "x", old, same)
    assert not target.exists()
    new = copied(sshd, source, target, hash="2")
    assert plugin.of(COPY).diff("x", old, old, new).detailed == {"source": "update"}
    plugin.of(COPY).preview(URN, "x", old, new)
    assert not target.exists()
    plugin.of(COPY).update(URN, "x", old, new)
    assert (target / "conf").read_text() == "2"


def test_every_problem_of_the_inputs_is_reported_before_anything_runs(plugin, sshd):
    connection = {**sshd.connection(), "agentSocketPath": "/a", "proxy": {"host": "b"}}
    del connection["host"]
    inputs = {"connection": connection, "source": archive(uri="x"), "triggers": []}
    _, wrong = plugin.of(COPY).check({}, inputs)
    assert [path for path, _ in wrong] == [
        "triggers",
        "connection.agentSocketPath",
        "connection.proxy",
        "connection.host",
        "remotePath",
        "source",
    ]
    assert all("the official plugin serves more" in why for _, why in wrong)


@pytest.mark.parametrize("path", [UNKNOWN, None])
def test_a_source_whose_path_is_no_text_is_refused(plugin, path):
    inputs = {"connection": UNKNOWN, "remotePath": "/x", "source": archive(path=path)}
    _, wrong = plugin.of(COPY).check({}, inputs)
    assert [path for path, _ in wrong] == ["source"]


def test_unknown_inputs_pass_the_check_of_a_preview(plugin):
    inputs = dict.fromkeys(("connection", "remotePath", "source"), UNKNOWN)
    assert plugin.of(COPY).check({}, inputs) == (inputs, [])
