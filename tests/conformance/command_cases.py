"""What pulumi-command does, case by case: each function returns one line that a table can hold.

The cases are what infra/components/soperator.py relies on, what its user meets when a server is
away, answers with another key, or a command fails, and what the stand-in refuses: inputs that the
program never sends.
"""

from __future__ import annotations

import hashlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.providers.engine.provider import ARCHIVE, ASSET, SIGNATURE, Secret
from tests.conformance.plugin import (
    Plugin,
    RefusedError,
    Resource,
    running_plugin,
    secret_keys,
    unknown_keys,
)
from tests.engine.sshd import Sshd

COMMAND = "command:remote:Command"
COPY = "command:remote:CopyToRemote"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTEQYBhvJUYyGCQSCbWuMPmDKqkmIvFY8oMJmvDbFWz"


Values = dict[str, Any]


def asset(**content: str) -> Values:
    """One file, as the engine sends it: path, text or uri, and hash."""
    return {SIGNATURE: ASSET, **content}


def archive(**content: Any) -> Values:
    """A tree of files, as the engine sends it: path, uri or assets, and hash."""
    return {SIGNATURE: ARCHIVE, **content}


@dataclass
class World:
    """Servers, a folder that both sides see, and the plugin under test."""

    program: Path
    folder: Path
    sshd: Sshd
    """Takes every variable that a client sends."""
    strict_sshd: Sshd
    """Takes none, as a login node does."""
    plugin: Plugin = field(init=False)

    def resource(self, type_: str, name: str = "ready") -> Resource:
        return Resource(self.plugin, type_, name)

    def remote(self, *, strict: bool = False, **inputs: Any) -> dict[str, Any]:
        """Inputs of a command as the program has them, but for what is given."""
        server = self.strict_sshd if strict else self.sshd
        reached = {"connection": Secret(server.connection(**inputs.pop("connection", {})))}
        return {**reached, "addPreviousOutputInEnv": False, **inputs}

    def copy(self, source: Values, place: Path | str, **inputs: Any) -> dict[str, Any]:
        """Inputs of a copy with a connection, secret as the Python SDK makes it."""
        reached = {"connection": Secret(self.sshd.connection(**inputs.pop("connection", {})))}
        return {**reached, "source": source, "remotePath": str(place), **inputs}

    def tidy(self, text: str) -> str:
        """A line without what differs from run to run."""
        for server, name in ((self.sshd, "PORT"), (self.strict_sshd, "PORT")):
            text = text.replace(str(server.port), name)
        return " ".join(text.replace(str(self.folder), "FOLDER").split())


@contextmanager
def started(world: World, environ: dict[str, str] | None = None) -> Iterator[World]:
    """The world with its plugin running."""
    variables = {"SSH_AUTH_SOCK": "", **(environ or {})}
    with running_plugin(world.program, {}, variables) as plugin:
        world.plugin = plugin
        yield world


def refusal(call: Callable[[], Any]) -> str:
    """The words of a refusal; what is not refused says so."""
    try:
        call()
    except RefusedError as error:
        return f"refused: {' '.join(str(error).split())}"
    return "accepted"


def output_of_both_streams(world: World) -> str:
    ready = world.resource(COMMAND)
    ready.create(world.remote(create="echo one; echo two >&2; printf 'three\\n\\n'"))
    lines = sorted(world.plugin.take_lines("info"))
    return f"stdout {ready.output('stdout')!r}, stderr {ready.output('stderr')!r}, shown {lines}"


def standard_input_and_environment(world: World) -> str:
    ready = world.resource(COMMAND)
    inputs = world.remote(create='cat; printf "%s" "$GREETING"', stdin="in\n")
    ready.create({**inputs, "environment": {"GREETING": "hello there"}})
    return repr(ready.output("stdout"))


def an_environment_that_the_server_does_not_take(world: World) -> str:
    ready = world.resource(COMMAND)
    inputs = world.remote(create="echo ran", environment={"GREETING": "x"}, strict=True)
    return refusal(lambda: ready.create(inputs))


def previous_output_that_the_server_does_not_take(world: World) -> str:
    ready = world.resource(COMMAND)
    told = {"addPreviousOutputInEnv": True}
    ready.create(world.remote(create="echo one", strict=True, **told))
    world.plugin.take_lines()
    ready.update(world.remote(create="echo two $PULUMI_COMMAND_STDOUT", strict=True, **told))
    warned = len(world.plugin.take_lines("warning"))
    return f"stdout {ready.output('stdout')!r}, {warned} warnings"


def update_runs_update_else_create_with_the_previous_output(world: World) -> str:
    ready, found = world.resource(COMMAND), []
    ready.create(world.remote(create="echo one"))
    for is_told, inputs in (
        (True, {"create": "echo again $PULUMI_COMMAND_STDOUT"}),
        (True, {"create": "echo one", "update": "echo updated $PULUMI_COMMAND_STDOUT"}),
        (False, {"create": "x", "update": "echo $PULUMI_COMMAND_STDOUT."}),
    ):
        declared = world.remote(addPreviousOutputInEnv=is_told, **inputs)
        found.append(ready.step(declared))
        ready.update(declared)
        found.append(ready.output("stdout"))
    return str(found)


def what_a_change_does(world: World) -> str:
    changes: dict[str, dict[str, Any]] = {
        "nothing": {},
        "create": {"create": "echo"},
        "connection": {"connection": {"dialErrorLimit": 3}},
    }
    return _steps(world, {"create": "true"}, changes)


def what_a_change_of_other_inputs_does(world: World) -> str:
    changes: dict[str, dict[str, Any]] = {
        "triggers": {"triggers": ["b"]},
        "create and triggers": {"create": "echo", "triggers": ["b"]},
        "delete": {"delete": "true"},
        "stdin": {"stdin": "x"},
    }
    return _steps(world, {"create": "true", "triggers": ["a"]}, changes)


def _steps(world: World, first: dict[str, Any], changes: dict[str, dict[str, Any]]) -> str:
    ready = world.resource(COMMAND)
    ready.create(world.remote(**first))
    return ", ".join(
        f"{name}: {ready.step(world.remote(**{**first, **change}))}"
        for name, change in changes.items()
    )


def what_a_change_of_a_copy_does(world: World) -> str:
    copy, declared = world.resource(COPY), _copy_of_a_folder(world, "copied")
    copy.create(declared)
    changes: dict[str, dict[str, Any]] = {
        "nothing": {},
        "source": {"source": {**declared["source"], "hash": "2"}},
        "remotePath": {"remotePath": f"{world.folder}/elsewhere"},
    }
    return ", ".join(
        f"{name}: {copy.step({**declared, **change})}" for name, change in changes.items()
    )


def what_new_triggers_of_a_copy_do(world: World) -> str:
    copy, declared = world.resource(COPY), _copy_of_a_folder(world, "triggered")
    copy.create(declared)
    return copy.step({**declared, "triggers": ["b"]})


def what_an_update_of_a_copy_copies(world: World) -> str:
    """Of a folder that has got a second file since."""
    copy, declared = world.resource(COPY), _copy_of_a_folder(world, "kept")
    other_connection = Secret(world.sshd.connection(dialErrorLimit=3))
    copy.create(declared)
    (world.folder / "kept-source" / "second").write_text("2")
    found = []
    for change in (
        {"connection": other_connection},
        {"source": {**declared["source"], "hash": "2"}},
        {"remotePath": f"{world.folder}/kept-elsewhere"},
    ):
        declared = {**declared, **change}
        copy.update(declared)
        there = sorted(path.name for path in Path(declared["remotePath"]).iterdir())
        found.append(f"{', '.join(change)}: {' '.join(there)}")
    return ", ".join(found)


def _copy_of_a_folder(world: World, name: str) -> dict[str, Any]:
    source = world.folder / f"{name}-source"
    source.mkdir(exist_ok=True)
    (source / "first").write_text("1")
    return world.copy(archive(path=f"{source}/", hash="1"), world.folder / name)


def delete_runs_with_the_last_output(world: World) -> str:
    ready, gone = world.resource(COMMAND), world.folder / "gone"
    delete = f"echo $PULUMI_COMMAND_STDOUT > {gone}"
    ready.create(world.remote(create="echo last", delete=delete, addPreviousOutputInEnv=True))
    ready.delete()
    return gone.read_text().strip()


def a_delete_that_fails(world: World) -> str:
    ready = world.resource(COMMAND)
    ready.create(world.remote(create="true", delete="echo no >&2; exit 4"))
    return refusal(ready.delete)


def a_command_that_fails(world: World) -> str:
    ready = world.resource(COMMAND)
    return refusal(lambda: ready.create(world.remote(create="echo out; echo err >&2; exit 7")))


def a_failing_command_whose_output_is_not_logged(world: World) -> str:
    ready = world.resource(COMMAND)
    text = refusal(
        lambda: ready.create(world.remote(create="echo hunter2 >&2; exit 1", logging="none"))
    )
    return f"{text}; shown {world.plugin.take_lines('info')}"


def a_command_that_a_signal_ends(world: World) -> str:
    return refusal(lambda: world.resource(COMMAND).create(world.remote(create="kill -9 $$")))


def a_server_that_is_away(world: World) -> str:
    inputs = world.remote(create="true", connection={"port": 9, "dialErrorLimit": 2})
    text = refusal(lambda: world.resource(COMMAND).create(inputs))
    return f"{text}; shown {world.plugin.take_lines('info')}"


def a_server_with_another_host_key(world: World) -> str:
    inputs = world.remote(create="true", connection={"hostKey": OTHER_KEY, "dialErrorLimit": 2})
    text = refusal(lambda: world.resource(COMMAND).create(inputs))
    return f"{text}; {len(world.plugin.take_lines('info'))} retries shown"


def a_host_key_that_is_no_key(world: World) -> str:
    inputs = world.remote(create="true", connection={"hostKey": "garbage"})
    return refusal(lambda: world.resource(COMMAND).create(inputs))


def a_user_key_that_the_server_does_not_know(world: World) -> str:
    key = world.folder / "unknown"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", key], check=True)
    changes = {"privateKey": key.read_text(), "dialErrorLimit": 1}
    inputs = world.remote(create="true", connection=changes)
    return refusal(lambda: world.resource(COMMAND).create(inputs))


def a_user_key_that_is_no_key(world: World) -> str:
    inputs = world.remote(create="true", connection={"privateKey": "garbage"})
    return refusal(lambda: world.resource(COMMAND).create(inputs))


def an_agent_that_is_dead(world: World) -> str:
    with started(world, {"SSH_AUTH_SOCK": f"{world.folder}/agent"}):
        ready = world.resource(COMMAND)
        return refusal(lambda: ready.create(world.remote(create="echo in")))


def a_server_behind_a_proxy(world: World) -> str:
    proxy = world.sshd.connection()
    ready = world.resource(COMMAND)
    inputs = world.remote(create="echo through", connection={"proxy": proxy})
    answer = refusal(lambda: ready.create(inputs))
    return ready.output("stdout") or answer


def secrets_of_the_state(world: World) -> str:
    ready = world.resource(COMMAND)
    state = ready.create(world.remote(create="echo one"))
    return ", ".join(secret_keys(state))


def secrets_of_a_preview(world: World) -> str:
    state = world.resource(COMMAND).create(world.remote(create="echo one"), preview=True)
    return f"secret: {', '.join(secret_keys(state))}; unknown: {', '.join(unknown_keys(state))}"


def a_preview_of_an_update(world: World) -> str:
    ready = world.resource(COMMAND)
    ready.create(world.remote(create="echo one"))
    state = ready.update(world.remote(create="echo two"), preview=True)
    return f"unknown: {', '.join(unknown_keys(state))}"


def defaults_of_a_connection(world: World) -> str:
    inputs = world.resource(COMMAND).check({"connection": Secret({"host": "h"}), "create": "true"})
    connection = inputs["connection"]
    values = connection.value if isinstance(connection, Secret) else connection
    return ", ".join(f"{key} {value}" for key, value in sorted(values.items()))


def inputs_that_are_refused(world: World) -> str:
    """Each is complete and right but for the one thing that it is called by."""
    command = world.remote(create="true")
    copy = world.copy(archive(path=f"{world.folder}/", hash="1"), "/x")
    connection = world.sshd.connection()
    wrong: dict[str, tuple[str, dict[str, Any]]] = {
        "no connection": (COMMAND, _without(command, "connection")),
        "no host": (COMMAND, {**command, "connection": Secret(_without(connection, "host"))}),
        "logging": (COMMAND, {**command, "logging": "all"}),
        "unknown input": (COMMAND, {**command, "crate": "true"}),
        "no source": (COPY, _without(copy, "source")),
        "no remotePath": (COPY, _without(copy, "remotePath")),
        "source on the web": (COPY, {**copy, "source": archive(uri="https://x", hash="1")}),
    }
    answers = {"a command": refusal(lambda: world.resource(COMMAND).check(command))}
    answers["a copy"] = refusal(lambda: world.resource(COPY).check(copy))
    answers |= {
        name: refusal(lambda type_=type_, inputs=inputs: world.resource(type_).check(inputs))
        for name, (type_, inputs) in wrong.items()
    }
    return ", ".join(f"{name}: {text.partition(':')[0]}" for name, text in answers.items())


def _without(inputs: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in inputs.items() if key != name}


def a_folder_with_a_slash(world: World) -> str:
    return _copied_folder(world, "slash", "/")


def a_folder_without_a_slash(world: World) -> str:
    return _copied_folder(world, "plain", "")


def _copied_folder(world: World, name: str, end: str) -> str:
    source, target = world.folder / "code", world.folder / "new" / name
    (source / "deep" / "empty").mkdir(parents=True, exist_ok=True)
    (source / "deep" / "a.py").write_text("a")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    world.resource(COPY).create(world.copy(archive(path=f"{source}{end}", hash="1"), target))
    there = sorted(
        f"{path.relative_to(target.parent)}" + ("*" if is_program(path) else "")
        for path in (target, *target.rglob("*"))
    )
    return " ".join(there)


def a_folder_over_an_older_one(world: World) -> str:
    source, target = world.folder / "fresh", world.folder / "older"
    for folder, name in ((source, "new"), (target, "stays"), (target, "new")):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"{name} of {folder.name}{'!' * (folder == target)}")
    world.resource(COPY).create(world.copy(archive(path=f"{source}/", hash="1"), target))
    return ", ".join(f"{path.name}: {path.read_text()}" for path in sorted(target.iterdir()))


def a_folder_with_links(world: World) -> str:
    source, target = world.folder / "links", world.folder / "unlinked"
    source.mkdir(exist_ok=True)
    (source / "file").write_text("text")
    for name, to in (("to-file", "file"), ("to-folder", str(world.folder / "code"))):
        if not (source / name).is_symlink():
            (source / name).symlink_to(to)
    copy = world.resource(COPY)
    return refusal(lambda: copy.create(world.copy(archive(path=f"{source}/", hash="1"), target)))


def a_file_into_a_folder_over_a_file_and_to_a_new_place(world: World) -> str:
    source = world.folder / "job.sh"
    source.write_text("new")
    folder, file = world.folder / "into", world.folder / "over"
    folder.mkdir(exist_ok=True)
    file.write_text("something longer")
    for place in (folder, file, world.folder / "missing" / "deep" / "name"):
        world.resource(COPY).create(world.copy(asset(path=str(source), hash="1"), place))
    paths = (folder / "job.sh", file, world.folder / "missing" / "deep" / "name")
    return ", ".join(path.read_text() for path in paths)


def a_text_onto_a_folder(world: World) -> str:
    copy = world.resource(COPY)
    return refusal(lambda: copy.create(world.copy(text_asset("x"), world.folder)))


def a_folder_onto_a_file(world: World) -> str:
    (world.folder / "taken").write_text("")
    (world.folder / "some").mkdir(exist_ok=True)
    inputs = world.copy(archive(path=f"{world.folder}/some/", hash="1"), world.folder / "taken")
    return refusal(lambda: world.resource(COPY).create(inputs))


def a_source_that_is_not_there(world: World) -> str:
    inputs = world.copy(archive(path=f"{world.folder}/nowhere/", hash="1"), world.folder / "x")
    return refusal(lambda: world.resource(COPY).create(inputs))


def a_place_without_room(world: World) -> str:
    """Stopped by a limit on the size of files, as a quota stops it: the server writes no more."""
    source = world.folder / "large"
    source.write_bytes(b"x" * 3_000_000)
    inputs = world.copy(asset(path=str(source), hash="1"), "/dev/full")
    return refusal(lambda: world.resource(COPY).create(inputs))


def an_interrupt(world: World) -> str:
    with started(world):
        mark = world.folder / "started"
        ready = world.resource(COMMAND)
        timer = threading.Timer(1.5, world.plugin.cancel)
        timer.start()
        text = refusal(
            lambda: ready.create(world.remote(create=f"touch {mark}; sleep 4; echo ended"))
        )
        timer.join()
        return text.partition(":")[0]


def text_asset(text: str) -> Values:
    return asset(text=text, hash=hashlib.sha256(text.encode()).hexdigest())


def is_program(path: Path) -> bool:
    return path.is_file() and bool(path.stat().st_mode & 0o100)


CASES: tuple[Callable[[World], str], ...] = (
    output_of_both_streams,
    standard_input_and_environment,
    an_environment_that_the_server_does_not_take,
    previous_output_that_the_server_does_not_take,
    update_runs_update_else_create_with_the_previous_output,
    what_a_change_does,
    what_a_change_of_other_inputs_does,
    what_a_change_of_a_copy_does,
    what_new_triggers_of_a_copy_do,
    what_an_update_of_a_copy_copies,
    delete_runs_with_the_last_output,
    a_delete_that_fails,
    a_command_that_fails,
    a_failing_command_whose_output_is_not_logged,
    a_command_that_a_signal_ends,
    a_server_that_is_away,
    a_server_with_another_host_key,
    a_host_key_that_is_no_key,
    a_user_key_that_the_server_does_not_know,
    a_user_key_that_is_no_key,
    an_agent_that_is_dead,
    a_server_behind_a_proxy,
    secrets_of_the_state,
    secrets_of_a_preview,
    a_preview_of_an_update,
    defaults_of_a_connection,
    inputs_that_are_refused,
    a_folder_with_a_slash,
    a_folder_without_a_slash,
    a_folder_over_an_older_one,
    a_folder_with_links,
    a_file_into_a_folder_over_a_file_and_to_a_new_place,
    a_text_onto_a_folder,
    a_folder_onto_a_file,
    a_source_that_is_not_there,
    a_place_without_room,
    an_interrupt,
)
