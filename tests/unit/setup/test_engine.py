"""The engine's surroundings: official things win, shipped files stay untouched, secrets open."""

import base64
import os
import stat
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC

from infra.cli.env import Target, environment
from infra.local import engine
from infra.local.errors import LocalError
from infra.local.state import CHECKOUT, Cache, State

STACKS = sorted((CHECKOUT / "stacks").glob("Pulumi.*.yaml"))


@pytest.fixture
def state(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("PULUMI_", "SOPERATOR_", "NEBIUS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return State.from_environ()


@pytest.mark.parametrize("file", STACKS, ids=lambda path: path.name)
def test_the_shared_passphrase_opens_the_salt_of_every_shipped_stack(file):
    """Else the engine asks for a passphrase, or writes a salt into a tracked file."""
    scheme, salt, _, nonce, text = yaml.safe_load(file.read_text())["encryptionsalt"].split(":")
    assert scheme == "v1"
    # Source: pulumi/pulumi sdk/go/common/resource/config/crypt.go, v3.190.0.
    kdf = PBKDF2HMAC(SHA256(), 32, base64.b64decode(salt), 1_000_000)
    cipher = AESGCM(kdf.derive(engine.PASSPHRASE.encode()))
    opened = cipher.decrypt(base64.b64decode(nonce), base64.b64decode(text), None)
    assert opened == b"pulumi"


def test_a_stack_file_without_a_salt_is_refused_before_the_engine_writes_one(tmp_path, monkeypatch):
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.dev.yaml").write_text("config: {}\n")
    monkeypatch.setattr(engine, "CHECKOUT", tmp_path)
    with pytest.raises(LocalError, match=r"^Pulumi.dev.yaml: encryptionsalt is missing"):
        engine.init_stacks(tmp_path / "backend", {"PATH": ""})


def test_keys_and_passphrase_are_made_once_and_private(state):
    for _ in range(2):
        engine.make_passphrase(state)
        engine.make_ssh_key(state)
        before = (state.ssh_key.read_text(), state.ssh_public_key.read_text())
    assert before == (state.ssh_key.read_text(), state.ssh_public_key.read_text())
    assert before[1].startswith("ssh-ed25519 AAAA")
    for file in (state.passphrase, state.ssh_key):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def program_of(home, name):
    version = metadata.version(engine.STAND_INS[name])
    return home / "plugins" / f"resource-{name}-v{version}" / f"pulumi-resource-{name}"


def test_stand_ins_are_linked_where_no_official_plugin_is(state, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    home = state.pulumi_home
    assert engine.link_plugins(home) == engine.link_plugins(home) == ["command", "kubernetes"]
    assert program_of(home, "command").resolve() == (
        CHECKOUT / "infra/local/plugins/bin/pulumi-resource-command"
    )


def test_an_official_plugin_in_the_users_own_folder_wins(state, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    engine.link_plugins(state.pulumi_home)
    official = program_of(Path.home() / ".pulumi", "command")
    official.parent.mkdir(parents=True)
    official.write_text("official")
    assert engine.link_plugins(state.pulumi_home) == ["kubernetes"]
    assert program_of(state.pulumi_home, "command").read_text() == "official"


def test_an_official_plugin_that_the_engine_installed_is_left_alone(state, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    installed = program_of(state.pulumi_home, "kubernetes")
    installed.parent.mkdir(parents=True)
    installed.write_text("official")
    assert engine.link_plugins(state.pulumi_home) == ["command"]
    assert installed.read_text() == "official"


def test_a_plugin_on_path_wins_over_a_stand_in(state, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    engine.link_plugins(state.pulumi_home)
    ambient = tmp_path / "bin" / "pulumi-resource-command"
    ambient.parent.mkdir()
    ambient.write_text("")
    ambient.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ambient.parent}:/usr/bin:/bin")
    assert engine.link_plugins(state.pulumi_home) == ["kubernetes"]
    assert not program_of(state.pulumi_home, "command").exists()


def test_the_path_is_the_same_after_a_second_eval(tmp_path):
    cache = Cache(tmp_path)
    once = engine.search_path("/opt/tools:/usr/bin", cache)
    assert engine.search_path(once, cache) == once
    assert once.split(":")[0] == str(CHECKOUT / ".venv" / "bin")


def test_the_embedded_cloud_is_the_default_and_nothing_points_outside_loopback(state):
    variables = environment()
    assert variables["SOPERATOR_NEBIUS_ENDPOINT"] == "http://127.0.0.1:17800"
    assert variables["PULUMI_BACKEND_URL"] == f"file://{state.pulumi}"


def test_a_backend_that_the_shell_chose_stays(state, monkeypatch):
    """A verb run after `env --cloud` must not read the outputs of another backend."""
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://ours")
    variables = environment()
    assert "PULUMI_BACKEND_URL" not in variables
    assert "SOPERATOR_NEBIUS_ENDPOINT" not in variables


def test_a_passphrase_variable_of_the_shell_is_overruled_on_the_embedded_cloud(state, monkeypatch):
    """The engine prefers PULUMI_CONFIG_PASSPHRASE, even empty, to the file."""
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "")
    engine.make_passphrase(state)
    assert environment(Target.LOCAL)["PULUMI_CONFIG_PASSPHRASE"] == engine.PASSPHRASE


def test_offline_without_its_emulator_says_what_to_run(state):
    with pytest.raises(LocalError, match=r"not running; run: eval"):
        environment(Target.OFFLINE)
