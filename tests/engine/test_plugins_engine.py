"""The plugin base, the language host and the command stand-in under the real engine."""

import json
import os
import shutil
import subprocess
import textwrap

import pytest

from infra.local import engine
from infra.state import CHECKOUT, Cache
from tests.engine.sshd import running_sshd

pytestmark = pytest.mark.engine

PLUGIN = """
from infra.providers.engine.provider import UNKNOWN, Diff, Provider, ProviderError, Secret, compare
from infra.providers.engine.serve import serve

class Disks(Provider):
    def check(self, old, new):
        wrong = [("size", "0 is no size; at least 1 GiB")] if new["size"] == 0 else []
        return new, wrong

    def diff(self, id, old_inputs, old_state, new):
        detailed = compare(old_inputs, new)
        replaces = [path for path in detailed if path == "kind"]
        return Diff(replaces=replaces, detailed=detailed, stables=["id"])

    def preview(self, urn, id, old_state, new):
        return {**new, "key": old_state.get("key", UNKNOWN)}

    def create(self, urn, inputs):
        if inputs["size"] == 13:
            raise ProviderError("disk: quota of 12 GiB reached;\\nask for more")
        return "disk-" + inputs["kind"], {**inputs, "key": Secret("hidden-key")}

    def update(self, urn, id, old_state, new):
        return {**new, "key": old_state["key"]}

    def delete(self, id, state):
        pass

serve(Disks(), "demo", "1.0.0")
"""
PROGRAM = """
import json, pathlib, pulumi, pulumi_command
settings = json.loads(pathlib.Path("settings.json").read_text())

class Disk(pulumi.CustomResource):
    def __init__(self, name, kind, size):
        super().__init__("demo:storage/v1:Disk", name, {"kind": kind, "size": size, "key": None})

disk = Disk("disk", settings["kind"], settings["size"])
pulumi_command.remote.Command(
    "note",
    connection=pulumi_command.remote.ConnectionArgs(**settings["connection"]),
    create=disk.id.apply(lambda id: f"echo made {id}"),
    add_previous_output_in_env=False,
)
pulumi.export("disk_id", disk.id)
pulumi.export("password", pulumi.Output.secret("hidden-password"))
"""


class Project:
    """A project folder with its own backend, and the engine that this machine has."""

    def __init__(self, folder, sshd):
        self.folder = folder
        self.connection = {
            "host": "127.0.0.1",
            "port": sshd.port,
            "user": "root",
            "private_key": sshd.private_key,
            "host_key": sshd.host_key,
            "dial_error_limit": 10,
            "per_dial_timeout": 15,
        }
        (folder / "home").mkdir()
        engine.link_plugins(folder / "home")
        path = engine.search_path(os.environ["PATH"], Cache.from_environ(), folder / "home")
        program = shutil.which("pulumi", path=path)
        if program is None:
            pytest.skip("no Pulumi engine on this machine (`make setup`)")
        self.program = program
        clean = {n: v for n, v in os.environ.items() if not n.startswith(("PULUMI_", "SOPERATOR_"))}
        self.env = {
            **clean,
            "PATH": path,
            "PYTHONPATH": str(CHECKOUT),
            "PULUMI_HOME": str(folder / "home"),
            "PULUMI_BACKEND_URL": f"file://{folder}/backend",
            "PULUMI_CONFIG_PASSPHRASE": "test",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
        }
        (folder / "backend").mkdir()
        (folder / "bin").mkdir()
        launcher = folder / "bin" / "pulumi-resource-demo"
        python = CHECKOUT / ".venv" / "bin" / "python"
        launcher.write_text(f'#!/bin/sh\nexec {python} -u {folder}/plugin.py "$@"\n')
        launcher.chmod(0o755)
        (folder / "plugin.py").write_text(PLUGIN)
        (folder / "__main__.py").write_text(PROGRAM)
        (folder / "Pulumi.yaml").write_text(
            textwrap.dedent(f"""\
            name: demo
            runtime: {{name: python, options: {{virtualenv: {CHECKOUT}/.venv}}}}
            plugins:
              providers:
                - {{name: demo, path: ./bin}}
            """)
        )
        self.declare()
        assert self("stack", "init", "dev").returncode == 0

    def declare(self, kind="ssd", size=1):
        settings = {"kind": kind, "size": size, "connection": self.connection}
        (self.folder / "settings.json").write_text(json.dumps(settings))

    def __call__(self, *arguments):
        return subprocess.run(
            [self.program, "--non-interactive", *arguments],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )

    def preview(self):
        """Operation and detailed diff of every resource of ours that changes."""
        done = self("preview", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        steps = json.loads(done.stdout)["steps"]
        return {
            step["urn"].rsplit("::", 1)[-1]: (
                step["op"],
                {path: diff["kind"] for path, diff in (step.get("detailedDiff") or {}).items()},
            )
            for step in steps
            if "pulumi:" not in step["urn"].split("::")[2]
        }


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    with running_sshd(tmp_path_factory.mktemp("sshd")) as sshd:
        yield Project(tmp_path_factory.mktemp("project"), sshd)


@pytest.fixture
def deployed(project):
    project.declare()
    done = project("up", "--yes", "--skip-preview")
    assert done.returncode == 0, done.stdout + done.stderr
    return project


def test_a_second_up_changes_nothing_and_warns_of_nothing(deployed):
    done = deployed("up", "--yes", "--skip-preview")
    assert "3 unchanged" in done.stdout
    assert "warning" not in done.stdout + done.stderr
    assert "$PATH" not in done.stdout + done.stderr


def test_a_changed_size_is_an_update_with_its_path_and_a_stable_id(deployed):
    """The command depends on the id alone: it must not move with the disk."""
    deployed.declare(size=2)
    assert deployed.preview() == {"disk": ("update", {"size": "update"})}


def test_a_changed_kind_replaces_the_disk_and_runs_the_command_again(deployed):
    deployed.declare(kind="hdd")
    found = deployed("preview", "--diff").stdout
    assert 'kind: "ssd" => "hdd"' in found
    assert "replace" in found
    assert deployed.preview()["note"][0] == "update"


def test_a_refresh_and_a_preview_leave_the_state_alone(deployed):
    before = deployed("stack", "export", "--show-secrets").stdout
    assert deployed("refresh", "--yes", "--skip-preview").returncode == 0
    deployed.declare(size=5)
    deployed.preview()
    after = deployed("stack", "export", "--show-secrets").stdout
    kept = ("urn", "id", "inputs", "outputs")
    states = [
        [{key: each.get(key) for key in kept} for each in json.loads(t)["deployment"]["resources"]]
        for t in (before, after)
    ]
    assert states[0] == states[1]


def test_secrets_are_encrypted_in_the_state(deployed):
    files = [path for path in (deployed.folder / "backend").rglob("*") if path.is_file()]
    text = "".join(path.read_text(errors="replace") for path in files)
    assert "disk-ssd" in text
    assert "hidden-key" not in text
    assert "hidden-password" not in text
    shown = deployed("stack", "output", "--show-secrets", "--json").stdout
    assert json.loads(shown) == {"disk_id": "disk-ssd", "password": "hidden-password"}


def test_a_refused_input_names_its_path_before_anything_is_made(deployed):
    deployed.declare(size=0)
    done = deployed("preview")
    assert done.returncode != 0
    assert "0 is no size; at least 1 GiB" in done.stdout


def test_a_refusal_of_the_plugin_is_one_line_without_a_traceback(deployed):
    deployed.declare(kind="hdd", size=13)
    done = deployed("up", "--yes", "--skip-preview")
    assert done.returncode != 0
    assert "disk: quota of 12 GiB reached; ask for more" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_program_that_fails_fails_the_preview(deployed):
    settings = deployed.folder / "settings.json"
    settings.write_text("{}")
    done = deployed("preview")
    assert done.returncode != 0
    assert "KeyError: 'kind'" in done.stdout + done.stderr


def test_destroy_leaves_no_resource(deployed):
    done = deployed("destroy", "--yes", "--skip-preview")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resources" not in json.loads(deployed("stack", "export").stdout)["deployment"]
