"""A tiny Pulumi project over the emulated Nebius API, run by the real engine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra.local import engine
from infra.state import Cache
from tests.engine import forked
from tests.ports import free_ports

CHECKOUT = Path(__file__).parents[2]
PROJECT = "project-e00p"
FILESYSTEM = "nebius:compute/v1:Filesystem"
_PLUGINS = CHECKOUT / "infra" / "providers" / "engine" / "bin"
_PULUMI_YAML = """
name: tiny
runtime: python
plugins:
  providers:
    - {{name: nebius, path: {plugins}}}
    - {{name: soperator, path: {plugins}}}
"""
_PROGRAM = """
import json
from pathlib import Path

import pulumi

from infra.providers.engine.resources import KeyPair, Resource

declared = json.loads(Path(__file__).with_name("declared.json").read_text())
made = {}
for name, (token, metadata, spec) in declared.items():
    for part in metadata, spec:
        for key, value in part.items():
            if isinstance(value, str) and value.startswith("id of "):
                part[key] = made[value.removeprefix("id of ")].id
    made[name] = Resource(token, name, metadata=metadata, spec=spec)
    pulumi.export(name, made[name].id)
if not declared:
    pair = KeyPair("deploy", comment="deploy key")
    pulumi.export("public_key", pair.public_key)
    pulumi.export("private_key", pair.private_key)
"""


def filesystem(name: str, **spec: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The declaration of a filesystem of 64 GiB, changed by `spec`."""
    metadata = {"parent_id": PROJECT, "name": name}
    return FILESYSTEM, metadata, {"type": "network-ssd", "size_gibibytes": 64, **spec}


def pulumi_binary() -> str | None:
    """The engine on PATH, or the one that set-up installed."""
    installed = Cache.from_environ().pulumi
    return shutil.which("pulumi") or (str(installed) if installed.exists() else None)


def path_with_plugins(home: Path) -> str:
    """PATH with an engine, after its plugins were put into PULUMI_HOME `home`."""
    home.mkdir(exist_ok=True)
    engine.link_plugins(home)
    return engine.search_path(os.environ["PATH"], Cache.from_environ(), home)


class Emulator:
    """The emulator's process over one state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self.port,) = free_ports(1)
        self.process: subprocess.Popen[str] | None = None

    def start(self, latency_s: float = 0.05) -> None:
        """Starts it, each time on the same port."""
        command = [sys.executable, "-m", "infra.local.nebius_api", "--state", str(self.folder)]
        command += ["--port", str(self.port), "--latency", str(latency_s)]
        environ = {**os.environ, "NEBIUS_IAM_TOKEN": "local-token", "PYTHONPATH": str(CHECKOUT)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT, env=environ
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert "ready" in ready, ready

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None
            while _answers(self.port):  # one that was forked ends right after who started it
                time.sleep(0.01)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running_emulator(folder: Path) -> Iterator[Emulator]:
    """An emulator for the length of a test."""
    emulator = Emulator(folder)
    emulator.start()
    try:
        yield emulator
    finally:
        emulator.kill()


_NEW_STACK: dict[str, bytes] = {}
"""What `pulumi stack init test` wrote the first time, for further projects."""
_SECRET = "4dabf18193072939515e22adb298388d"
"""Marks an encrypted value (github.com/pulumi/pulumi sdk/go/common/resource/sig.go, Key)."""


class Project:
    """The project folder, its file backend and its environment."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.environ = {
            **{name: os.environ[name] for name in forked.VARIABLES if name in os.environ},
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": path_with_plugins(folder / "pulumi-home"),
            "PYTHONPATH": str(CHECKOUT),
            "NEBIUS_IAM_TOKEN": "local-token",
            "SOPERATOR_CACHE": str(Cache.from_environ().root),
            "SOPERATOR_NEBIUS_ENDPOINT": f"http://127.0.0.1:{port}",
            "SOPERATOR_CRDS": str(CHECKOUT / "infra" / "local" / "kube" / "crds"),
            "PULUMI_BACKEND_URL": f"file://{folder}",
            "PULUMI_CONFIG_PASSPHRASE": "tests",
            "PULUMI_HOME": str(folder / "pulumi-home"),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_STACK": "test",
        }
        # Relative, as in the real project: the engine takes it from the folder of Pulumi.yaml.
        plugins = os.path.relpath(_PLUGINS, folder)
        (folder / "Pulumi.yaml").write_text(_PULUMI_YAML.format(plugins=plugins))
        (folder / "__main__.py").write_text(_PROGRAM)
        self.declare()
        if not _NEW_STACK:
            self.run("stack", "init", "test")
            made = (self.folder / "Pulumi.test.yaml", *(self.folder / ".pulumi").rglob("*.*"))
            _NEW_STACK.update(
                (str(path.relative_to(folder)), path.read_bytes())
                for path in made
                if path.is_file()
            )
        for path, content in _NEW_STACK.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)

    def declare(self, **resources: Any) -> None:
        """Replaces what the program declares; with nothing it declares a key pair."""
        (self.folder / "declared.json").write_text(json.dumps(resources))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A running pulumi command."""
        binary = shutil.which("pulumi", path=self.environ["PATH"])
        assert binary is not None
        return subprocess.Popen(
            [binary, *arguments, "--non-interactive", "--color=never"],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, fails: bool = False) -> str:
        """What a pulumi command printed."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=120)
        assert (process.returncode != 0) is fails, output
        return output

    def up(self, *arguments: str, fails: bool = False) -> str:
        """`pulumi up` without asking."""
        return self.run("up", "--yes", "--skip-preview", *arguments, fails=fails)

    def outputs(self) -> dict[str, Any]:
        """Stack outputs, with secrets."""
        (stack, *_) = json.loads(self.state())["checkpoint"]["latest"]["resources"]
        if _SECRET in json.dumps(found := stack["outputs"]):
            return json.loads(self.run("stack", "output", "--json", "--show-secrets"))
        return found

    def state(self) -> str:
        """The state file as it lies on the disk."""
        return (self.folder / ".pulumi" / "stacks" / "tiny" / "test.json").read_text()
