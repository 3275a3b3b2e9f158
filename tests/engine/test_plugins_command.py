"""The stand-in for pulumi-command does over a real sshd what the official plugin does."""

import re
import subprocess
import threading

import pytest

from infra.local.plugins.command import COPY, REMOTE, CommandProvider
from infra.providers.engine.provider import UNKNOWN, Archive, Asset, ProviderError
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
    return {"connection": sshd.connection(), **inputs}


def test_create_runs_once_and_keeps_its_output(plugin, sshd, lines):
    inputs = remote(sshd, create="echo one; echo two >&2", stdin="ignored")
    id_, state = plugin.of(REMOTE).create(URN, inputs)
    assert id_.startswith("ready")
    assert (state["stdout"], state["stderr"]) == ("one", "two")
    assert sorted(lines) == ["one", "two"]


def test_standard_input_and_environment_reach_the_command(plugin, sshd):
    inputs = remote(sshd, create='cat; printf "%s" "$GREETING"', stdin="in\n")
    inputs["environment"] = {"GREETING": "hello there"}
    _, state = plugin.of(REMOTE).create(URN, inputs)
    assert state["stdout"] == "in\nhello there"


def test_a_large_output_arrives_whole(plugin, sshd):
    _, state = plugin.of(REMOTE).create(URN, remote(sshd, create="seq 1 100000", logging="none"))
    assert state["stdout"].splitlines() == [str(i) for i in range(1, 100001)]


def test_a_preview_runs_nothing_and_leaves_the_output_open(plugin, sshd, tmp_path):
    inputs = remote(sshd, create=f"touch {tmp_path}/made")
    state = plugin.of(REMOTE).preview(URN, "", {}, inputs)
    after = plugin.of(REMOTE).preview(URN, "x", {**inputs, "stdout": "o"}, inputs)
    assert state["stdout"] is after["stdout"] is UNKNOWN
    assert not (tmp_path / "made").exists()


def test_an_update_runs_update_and_without_it_create_again(plugin, sshd):
    old = remote(sshd, create="echo c", stdout="before", stderr="")
    new = remote(sshd, create="echo again $PULUMI_COMMAND_STDOUT")
    assert plugin.of(REMOTE).update(URN, "x", old, new)["stdout"] == "again before"
    new["update"] = "echo updated"
    assert plugin.of(REMOTE).update(URN, "x", old, new)["stdout"] == "updated"
    new |= {"update": "echo none:$PULUMI_COMMAND_STDOUT", "addPreviousOutputInEnv": False}
    assert plugin.of(REMOTE).update(URN, "x", old, new)["stdout"] == "none:"


def test_delete_runs_the_delete_command_with_the_last_output(plugin, sshd, tmp_path):
    state = remote(sshd, delete=f"echo $PULUMI_COMMAND_STDOUT > {tmp_path}/gone", stdout="last")
    plugin.of(REMOTE).delete("x", state)
    assert (tmp_path / "gone").read_text() == "last\n"


def test_output_that_is_not_logged_is_in_the_error_alone(plugin, sshd, lines):
    inputs = remote(sshd, create="echo hunter2 >&2; exit 1", logging="none")
    with pytest.raises(ProviderError, match="hunter2"):
        plugin.of(REMOTE).create(URN, inputs)
    assert lines == []


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


def test_a_connection_goes_through_its_proxy(plugin, sshd):
    inputs = {"connection": sshd.connection(proxy=sshd.connection()), "create": "echo through"}
    assert plugin.of(REMOTE).create(URN, inputs)[1]["stdout"] == "through"


def test_cancel_ends_a_running_command(plugin, sshd, lines):
    inputs = {"create": "echo started; exec sleep 600", "connection": sshd.connection()}
    timer = threading.Timer(0.5, plugin.cancelled.set)
    timer.start()
    with pytest.raises(ProviderError, match=r"^cancelled"):
        plugin.of(REMOTE).create(URN, inputs)
    timer.join()


def test_a_folder_lands_in_the_remote_folder_and_with_a_slash_its_content(plugin, sshd, tmp_path):
    source = tmp_path / "code"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "deep" / "a.py").write_text("a")
    target = tmp_path / "new" / "place"
    inputs = remote(sshd, remotePath=str(target), source=Archive(path=str(source)))
    plugin.of(COPY).create(URN, inputs)
    assert (target / "code" / "deep" / "a.py").read_text() == "a"
    assert (target / "code" / "deep" / "empty").is_dir()
    inputs["source"] = Archive(path=f"{source}/")
    plugin.of(COPY).create(URN, inputs)
    assert (target / "deep" / "a.py").read_text() == "a"


def test_a_file_lands_in_a_folder_or_replaces_a_file(plugin, sshd, tmp_path):
    source = tmp_path / "job.sh"
    source.write_text("new")
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.write_text("something longer")
    for place in (folder, file, tmp_path / "missing" / "name"):
        inputs = remote(sshd, remotePath=str(place), source=Asset(path=str(source)))
        plugin.of(COPY).create(URN, inputs)
    assert (folder / "job.sh").read_text() == file.read_text() == "new"
    assert (tmp_path / "missing" / "name").read_text() == "new"


def test_a_text_becomes_a_file_and_never_a_folder(plugin, sshd, tmp_path):
    inputs = remote(sshd, remotePath=str(tmp_path / "conf"), source=Asset(text="x = 1\n"))
    plugin.of(COPY).create(URN, inputs)
    assert (tmp_path / "conf").read_text() == "x = 1\n"
    inputs["remotePath"] = str(tmp_path)
    with pytest.raises(ProviderError, match="is a directory; when using a text asset"):
        plugin.of(COPY).create(URN, inputs)


def test_a_folder_onto_a_file_is_refused(plugin, sshd, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "code").mkdir()
    archive = Archive(path=f"{tmp_path}/code/")
    inputs = remote(sshd, remotePath=str(tmp_path / "file"), source=archive)
    with pytest.raises(ProviderError, match="exists but is not a directory"):
        plugin.of(COPY).create(URN, inputs)


def test_a_copy_is_repeated_only_for_new_content_or_a_new_place(plugin, sshd, tmp_path):
    target = tmp_path / "conf"
    old = remote(sshd, remotePath=str(target), source=Asset(text="1", hash="1"))
    plugin.of(COPY).update(URN, "x", old, {**old, "triggers": ["t"]})
    assert not target.exists()
    new = {**old, "source": Asset(text="2", hash="2")}
    plugin.of(COPY).preview(URN, "x", old, new)
    assert not target.exists()
    plugin.of(COPY).update(URN, "x", old, new)
    assert target.read_text() == "2"


def test_every_problem_of_the_inputs_is_reported_before_anything_runs(plugin):
    connection = {"agentSocketPath": "/a", "proxy": {"host": "b"}}
    inputs = {"connection": connection, "source": Archive(uri="x")}
    _, wrong = plugin.of(COPY).check({}, inputs)
    assert [path for path, _ in wrong] == [
        "remotePath",
        "connection.host",
        "connection.agentSocketPath",
        "connection.proxy",
        "source",
    ]


def test_unknown_inputs_pass_the_check_of_a_preview(plugin):
    inputs = dict.fromkeys(("connection", "remotePath", "source"), UNKNOWN)
    assert plugin.of(COPY).check({}, inputs) == (inputs, [])
