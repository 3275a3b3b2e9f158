"""The engine's surroundings: official things win, shipped files stay untouched, secrets open."""

import base64
import os
import shutil
import stat
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC

from infra.cli.machine.env import Target, environment, prepare
from infra.local import engine
from infra.local.process import LocalError
from infra.state import CHECKOUT, Cache, State
from tests import SHIPPED

STACKS = [CHECKOUT / f"stacks/Pulumi.{name}.yaml" for name in SHIPPED]


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
    cipher = AESGCM(kdf.derive(engine.PUBLIC.encode()))
    opened = cipher.decrypt(base64.b64decode(nonce), base64.b64decode(text), None)
    assert opened == b"pulumi"


def test_one_bad_stack_file_is_told_and_keeps_nobody_from_another_stack(tmp_path, monkeypatch):
    """The engine would write a salt into a file without one; `env` printed nothing at all."""
    stacks = tmp_path / "stacks"
    stacks.mkdir()
    (stacks / "Pulumi.a-bare.yaml").write_text("config: {}\n")
    (stacks / "Pulumi.b-cut.yaml").write_text("encryptionsalt: v1:abc\n")
    (stacks / "Pulumi.c-binary.yaml").write_bytes(b"\xff\xfe")
    os.mkfifo(stacks / "Pulumi.d-fifo.yaml")
    good = next(path for path in STACKS if "h100-prod" in path.name).read_text()
    for name in ("e-refused", "h100-prod"):
        (stacks / f"Pulumi.{name}.yaml").write_text(good)
    before = (stacks / "Pulumi.a-bare.yaml").read_bytes()
    program = tmp_path / "bin" / "pulumi"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$5" >> {tmp_path}/made\n'
        '[ "$5" != e-refused ] || { echo no such name >&2; exit 1; }\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(engine, "CHECKOUT", tmp_path)
    left_out = engine.init_stacks(tmp_path / "backend", {"PATH": str(program.parent)})
    assert (tmp_path / "made").read_text().split() == ["e-refused", "h100-prod"]
    bare, binary, fifo, refused = left_out
    assert bare.startswith("Pulumi.a-bare.yaml: encryptionsalt is missing")
    assert "`pulumi stack init a-bare`" in bare
    assert binary.startswith("Pulumi.c-binary.yaml: cannot be read")
    assert fifo.startswith("Pulumi.d-fifo.yaml: cannot be read")
    assert refused == "Pulumi.e-refused.yaml: no preview of this stack: no such name"
    assert (stacks / "Pulumi.a-bare.yaml").read_bytes() == before


def test_without_an_engine_no_stack_is_made_at_all(tmp_path):
    with pytest.raises(LocalError, match=r"^pulumi: not installed"):
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


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A folder of official programs, without the kubernetes plugin, and an engine in the cache."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("SOPERATOR_CACHE", str(tmp_path / "cache"))
    engine_there = Cache.from_environ().pulumi
    folder = tmp_path / "built"
    host = "pulumi-language-python"
    for path in (
        engine_there,
        *(folder / name for name in (host, f"{host}-exec", "pulumi-resource-command")),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"official {path.name}")
        path.chmod(0o755)
    monkeypatch.setenv("SOPERATOR_PLUGINS", str(folder))
    return folder


def test_programs_of_the_given_folder_win_and_missing_ones_are_named(state, built):
    home = state.pulumi_home
    assert engine.link_plugins(home) == ["kubernetes"]
    placed = program_of(home, "command")
    assert placed.read_text() == "official pulumi-resource-command"
    assert [line.split(":")[1:3] for line in engine.describe_plugins()] == [
        [" pulumi-language-python", " official, from " + str(built)],
        [" pulumi-language-python-exec", " official, from " + str(built)],
        [" pulumi-resource-command", " official, from " + str(built)],
        [
            " pulumi-resource-kubernetes",
            f" not in {built}; the one that would be used without SOPERATOR_PLUGINS is used",
        ],
    ]


def test_a_program_that_was_built_anew_replaces_the_placed_one(state, built):
    engine.link_plugins(state.pulumi_home)
    fresh = built / "fresh"
    fresh.write_text("built anew")
    fresh.replace(built / "pulumi-resource-command")
    engine.link_plugins(state.pulumi_home)
    assert program_of(state.pulumi_home, "command").read_text() == "built anew"


def test_without_the_setting_the_stand_ins_are_back(state, built, monkeypatch):
    engine.link_plugins(state.pulumi_home)
    monkeypatch.delenv("SOPERATOR_PLUGINS")
    assert engine.link_plugins(state.pulumi_home) == ["command", "kubernetes"]
    assert program_of(state.pulumi_home, "command").is_symlink()
    assert not (state.pulumi_home / "engine").exists()


def test_the_engine_runs_beside_the_official_language_host(state, built):
    """From beside its own program alone it takes one without a warning at every run."""
    engine.link_plugins(state.pulumi_home)
    path = engine.search_path("/usr/bin", Cache.from_environ(), state.pulumi_home)
    found = Path(shutil.which("pulumi", path=path))
    assert found == state.pulumi_home / "engine" / "pulumi"
    assert not found.is_symlink()
    assert found.with_name("pulumi-language-python").read_text().startswith("official")


def test_a_setting_that_names_no_folder_is_refused(state, monkeypatch, tmp_path):
    monkeypatch.setenv("SOPERATOR_PLUGINS", str(tmp_path / "nowhere"))
    with pytest.raises(LocalError, match=r"^SOPERATOR_PLUGINS: '.*nowhere' is no folder; give one"):
        engine.link_plugins(state.pulumi_home)


@pytest.mark.feature("S002-73")
@pytest.mark.parametrize(("version", "is_taken"), [("v3.99.0", False), ("v3.999.0", True)])
def test_an_old_engine_on_path_comes_after_the_one_that_is_built(tmp_path, version, is_taken):
    cache, official = Cache(tmp_path / "cache"), tmp_path / "official"
    for folder, text in ((cache.pulumi.parent, "v3.999.0"), (official, version)):
        folder.mkdir(parents=True)
        for name in ("pulumi", "pulumi-language-python"):
            (folder / name).write_text(f"#!/bin/sh\necho {text}\n")
            (folder / name).chmod(0o755)
    path = engine.search_path(f"{official}:/usr/bin", cache, tmp_path / "home")
    taken = official if is_taken else cache.pulumi.parent
    assert shutil.which("pulumi", path=path) == str(taken / "pulumi")


def test_the_path_is_the_same_after_a_second_eval(tmp_path):
    cache = Cache(tmp_path)
    once = engine.search_path("/opt/tools:/usr/bin", cache, tmp_path)
    assert engine.search_path(once, cache, tmp_path) == once
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
    assert environment(Target.LOCAL)["PULUMI_CONFIG_PASSPHRASE"] == engine.PUBLIC


def test_offline_without_its_emulator_says_what_to_run(state):
    with pytest.raises(LocalError, match=r"not running; run: eval"):
        environment(Target.OFFLINE)


@pytest.mark.feature("S000-65")
def test_the_environment_of_a_real_cloud_has_no_passphrase_that_everybody_knows(state, monkeypatch):
    for name in ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE", "PULUMI_BACKEND_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SOPERATOR_STATE", str(state.root))
    prepare(Target.CLOUD)
    assert not state.passphrase.exists()
    engine.make_passphrase(state)  # of a local stack on the same machine
    assert "PULUMI_CONFIG_PASSPHRASE_FILE" not in environment(Target.CLOUD)
    state.passphrase.write_text("own\n")
    assert environment(Target.CLOUD)["PULUMI_CONFIG_PASSPHRASE_FILE"] == str(state.passphrase)
