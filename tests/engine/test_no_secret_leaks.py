"""No secret where it does not belong, after a whole `up`: everything written is searched.

The local stack on real daemons. Its secrets are all that the engine's state knows as secret, so
that a new one is searched for as soon as it exists, with the passphrase and the cloud's token.
`local/` of the state folder is the cloud's own machine: there a secret may lie where its owner
keeps it, behind a folder of mode 0700, and in no log and no recorded command.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infra.clients.passphrase import PUBLIC
from infra.local import cloud
from infra.local.cloud import Cloud
from infra.local.process import LocalError
from infra.state import CHECKOUT, Cache, Ports, State
from tests.engine.nebius_project import pulumi_binary
from tests.ports import free_base, free_node_port

pytestmark = [
    pytest.mark.engine,
    pytest.mark.local,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]
# sdk/python/lib/pulumi/runtime/rpc.py: the mark of a secret in a state, and in an export.
SECRET_MARK = "4dabf18193072939515e22adb298388d"
MIN_LENGTH = 10
"""Shorter lines of a secret are found everywhere by chance."""
SAME_IN_ALL = ("-----", "b3BlbnNzaC1rZXktdjE")
"""How lines begin that every OpenSSH private key has: the frame, and `openssh-key-v1`."""
_OWNED = ("PULUMI_", "NEBIUS_", "SOPERATOR_")
_SAMPLE_S = 0.05


@dataclass
class Stack:
    """The local stack as it is after its `up`, and all that was seen of the way there."""

    folder: Path
    environ: dict[str, str]
    options: list[str]
    printed: dict[str, str] = field(default_factory=dict)
    """Command -> what it printed."""
    command_lines: set[str] = field(default_factory=set)

    def run(self, *command: str) -> str:
        """What a command printed; it must succeed."""
        done = subprocess.run(
            command,
            cwd=CHECKOUT,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        self.printed[" ".join(command)] = done.stdout
        return done.stdout

    def soperator(self, *words: str) -> str:
        """What a verb printed."""
        return self.run(sys.executable, "-m", "infra.cli.main", *words)

    def pulumi(self, verb: str, *arguments: str) -> str:
        """What pulumi printed."""
        return self.run("pulumi", verb, *arguments, "--stack=local", "--non-interactive")

    def watch(self, stop: threading.Event) -> None:
        """Notes the command line of every process of this stack until `stop`."""
        mark = f"SOPERATOR_STATE={self.folder}".encode()
        while not stop.wait(_SAMPLE_S):
            for entry in Path("/proc").iterdir():
                if entry.name.isdecimal():
                    try:
                        if mark in (entry / "environ").read_bytes():
                            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                            self.command_lines.add(line.decode(errors="replace"))
                    except OSError:
                        continue


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root = tmp_path_factory.mktemp("leaks")
    folder, config = root / "state", root / "Pulumi.local.yaml"
    text = (CHECKOUT / "stacks" / "Pulumi.local.yaml").read_text()
    config.write_text(re.sub(r"ssh_port: \d+", f"ssh_port: {free_node_port()}", text))
    base = free_base()
    embedded = Cloud(state=State(folder), cache=Cache.from_environ(), ports=Ports(base))
    try:
        cloud.check_machine(embedded)
    except LocalError as error:
        pytest.skip(str(error))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWNED)}
    ours = {
        **kept,
        "SOPERATOR_STATE": str(folder),
        "SOPERATOR_CACHE": str(embedded.cache.root),
        "SOPERATOR_LOCAL_PORT_BASE": str(base),
        "PYTHONPATH": str(CHECKOUT),
    }
    made = Stack(folder, ours, [f"--config-file={config}", "--yes", "--skip-preview"])
    stop = threading.Event()
    watcher = threading.Thread(target=made.watch, args=(stop,))
    watcher.start()
    try:
        made.soperator("local", "up")
        made.environ |= _exports(made.soperator("env"))
        made.pulumi("up", *made.options)
        yield made
    finally:
        stop.set()
        watcher.join()
        cloud.down(embedded, purge=True)


def _exports(text: str) -> dict[str, str]:
    """Variables of the lines that a shell would read."""
    words = [shlex.split(line) for line in text.splitlines() if line.startswith("export ")]
    return dict(word[1].split("=", 1) for word in words)


@pytest.fixture(scope="module")
def secrets(stack: Stack) -> list[bytes]:
    """Every secret as it would be found: line by line, in JSON, and as Kubernetes writes it."""
    exported = stack.pulumi("stack", "export", "--show-secrets")
    stack.printed = {c: text for c, text in stack.printed.items() if "--show-secrets" not in c}
    token = State.from_environ(stack.environ).token.read_text()
    found = [token, PUBLIC, *_secret_texts(json.loads(exported)["deployment"])]
    texts = [text for text in found if not text.startswith("ssh-")]  # the public half of a pair
    needles = {base64.b64encode(text.encode())[:80] for text in texts}
    for text in texts:
        # A JSON text is whole a secret; its lines are found in any other one.
        lines = [text, json.dumps(text)[1:-1]] if text.startswith("{") else text.splitlines()
        needles |= {line.encode() for line in lines if not line.startswith(SAME_IN_ALL)}
    return sorted(needle for needle in needles if len(needle) >= MIN_LENGTH)


def _secret_texts(value: Any) -> Iterator[str]:
    """Texts inside every secret value of an exported state."""
    if isinstance(value, dict):
        if SECRET_MARK in value and "plaintext" in value:
            yield from _texts(json.loads(value["plaintext"]))
        else:
            for one in value.values():
                yield from _secret_texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _secret_texts(one)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _having(secrets: list[bytes], files: Iterator[Path]) -> list[str]:
    """Files that have a secret in them."""
    found = []
    for path in files:
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if any(secret in content for secret in secrets):
                found.append(str(path))
    return found


@pytest.mark.feature("S003-68")
def test_the_search_knows_the_secrets_and_finds_what_is_there(
    stack: Stack, secrets: list[bytes]
) -> None:
    """Without this the others would pass on an empty list, or by reading nothing."""
    outputs = json.loads(stack.pulumi("stack", "output", "--json"))
    public = outputs["login_host_key"].split()[1].encode()
    state = stack.folder / "pulumi" / ".pulumi" / "stacks"
    assert _having([public], state.rglob("*.json"))
    assert sum(b"AAAAC3NzaC1lZDI1NTE5" not in one and len(one) > 50 for one in secrets) >= 8
    assert any("pulumi up" in line for line in stack.command_lines)


def test_no_secret_is_in_what_was_printed(stack: Stack, secrets: list[bytes]) -> None:
    stack.pulumi("preview", stack.options[0], "--diff")
    for command, text in stack.printed.items():
        if not command.endswith(" env"):  # whose purpose is to give the token to the shell
            assert not any(secret.decode() in text for secret in secrets), command


def test_no_secret_is_in_a_stack_output(stack: Stack, secrets: list[bytes]) -> None:
    text = stack.pulumi("stack", "output", "--json")
    assert not any(secret.decode() in text for secret in secrets)


def test_no_secret_is_on_a_command_line(stack: Stack, secrets: list[bytes]) -> None:
    lines = "\n".join(stack.command_lines)
    assert not any(secret.decode() in lines for secret in secrets)


def test_no_secret_is_in_a_file_of_the_user(stack: Stack, secrets: list[bytes]) -> None:
    """State, backups, history, builds, plugins' folders: all but the cloud's own machine."""
    own = ("local", "passphrase", "token")
    places = [path for path in stack.folder.iterdir() if path.name not in own]
    assert _having(secrets, (path for place in places for path in (place, *place.rglob("*")))) == []


def test_no_secret_is_in_a_log_or_a_record_of_the_cloud(stack: Stack, secrets: list[bytes]) -> None:
    local = stack.folder / "local"
    logs = [*local.rglob("*.log"), *local.rglob("run/*.json"), *local.rglob("slurm-*.out")]
    assert logs
    assert _having(secrets, iter(logs)) == []


def test_what_others_must_not_read_has_a_mode_that_says_so(stack: Stack) -> None:
    """The engine writes its backups with the user's umask: the folder around them is closed."""
    folders = ("", "local", "local/kube", "ssh", "pulumi", "offline")
    files = ("passphrase", "token", "ssh/id_ed25519", "local/kube/tokens.csv")
    modes = dict.fromkeys(folders, 0o700) | dict.fromkeys(files, 0o600)
    found = {name: (stack.folder / name).stat().st_mode & 0o777 for name in modes}
    assert found == modes
