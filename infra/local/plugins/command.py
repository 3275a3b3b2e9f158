"""Stand-in for pulumi-command 1.2.1: remote.Command, remote.CopyToRemote and local.Command.

Used only where the official plugin is not found. Owns their life cycle as the official one has it:
`create` once, `update` (else `create`) on a change, `delete` at the end, nothing in a preview.
Speaks the official one's words, whose errors hold the whole command and its output, logged or not.
Does not serve functions, assetPaths and archivePaths, or an SSH agent; it refuses them.
tests/conformance/plugins.tsv has what differs all the same.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any, Final

from infra.local.plugins import ssh
from infra.plugins.provider import (
    UNKNOWN,
    Archive,
    Asset,
    Diff,
    Provider,
    ProviderError,
    compare,
)
from infra.plugins.serve import serve

REMOTE: Final = "command:remote:Command"
COPY: Final = "command:remote:CopyToRemote"
LOCAL: Final = "command:local:Command"
_COMMAND: Final = (
    "addPreviousOutputInEnv",
    "create",
    "delete",
    "environment",
    "logging",
    "stdin",
    "triggers",
    "update",
)
_KNOWN: Final = {
    REMOTE: (*_COMMAND, "connection"),
    COPY: ("connection", "remotePath", "source", "triggers"),
    LOCAL: (*_COMMAND, "archivePaths", "assetPaths", "dir", "interpreter"),
}
_REQUIRED: Final = {
    REMOTE: ("connection",),
    COPY: ("connection", "remotePath", "source"),
    LOCAL: (),
}
_LOGGED: Final = {
    "stdoutAndStderr": ("stdout", "stderr"),
    "stdout": ("stdout",),
    "stderr": ("stderr",),
    "none": (),
}
_ACCEPT_ENV: Final = (
    "This only works if your SSH server is configured to accept these variables via AcceptEnv. "
    "Alternatively, if a Bash-like shell runs the command on the remote host, you could prefix the "
    "command itself with the variables in the form 'VAR=value command'"
)
Values = dict[str, Any]


class CommandProvider(Provider):
    """The three resources of pulumi-command that the program uses."""

    def check(self, type_: str, old: Values, new: Values) -> tuple[Values, list[tuple[str, str]]]:
        if type_ not in _REQUIRED:
            raise ProviderError(f"{type_}: the stand-in for pulumi-command serves {_kinds()}")
        wrong = [(n, f"{n} is missing; declare it") for n in _REQUIRED[type_] if n not in new]
        wrong += _connection_problems(new.get("connection"))
        if type_ == COPY and "source" in new:
            wrong += _source_problems(new["source"])
        wrong += [(name, "unknown") for name in sorted(new.keys() - set(_KNOWN[type_]))]
        wrong += [
            (name, "not served by the stand-in; install the official command plugin")
            for name in ("assetPaths", "archivePaths")
            if name in new
        ]
        if isinstance(new.get("connection"), dict):
            new = {**new, "connection": ssh.with_defaults(new["connection"])}
        return new, wrong

    def diff(self, type_: str, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        detailed = compare(old_inputs, new)
        # Triggers of a command update it, as any other input: so pulumi-command does since 1.1.
        fixed = tuple(path for path in detailed if type_ == COPY and path.startswith("triggers"))
        return Diff(detailed=detailed, replaces=fixed)

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        id_ = urn.rsplit("::", 1)[-1] + secrets.token_hex(4)
        if type_ == COPY:
            if not preview:
                self._copy(inputs)
            return id_, inputs
        if preview:
            return id_, {**inputs, "stdout": UNKNOWN, "stderr": UNKNOWN}
        return id_, self._run(type_, urn, inputs, inputs.get("create"), {})

    def update(
        self,
        type_: str,
        urn: str,
        id: str,
        old_state: Values,
        old_inputs: Values,
        new: Values,
        preview: bool,
    ) -> Values:
        if type_ == COPY:
            moved = new["remotePath"] != old_state.get("remotePath")
            if not preview and (moved or new["source"] != old_state.get("source")):
                self._copy(new)
            return new
        if preview:
            return {**new, "stdout": UNKNOWN, "stderr": UNKNOWN}
        command = new["update"] if new.get("update") is not None else new.get("create")
        return self._run(type_, urn, new, command, old_state)

    def delete(self, type_: str, id: str, state: Values) -> None:
        if type_ != COPY and state.get("delete") is not None:
            self._run(type_, "", state, state["delete"], state)

    def _copy(self, inputs: Values) -> None:
        source, remote = inputs["source"], inputs["remotePath"]
        with ssh.connected(inputs["connection"], self.cancelled) as client:
            try:
                with client.open_sftp() as sftp:
                    if isinstance(source, Asset) and source.text is not None:
                        ssh.copy_text(sftp, source.text, remote)
                    else:
                        ssh.copy_path(sftp, str(source.path), remote)
            except OSError as error:
                raise ProviderError(f"remotePath: '{remote}': {error}") from error

    def _run(
        self, type_: str, urn: str, inputs: Values, command: str | None, previous: Values
    ) -> Values:
        """The state after `command` ran; without one the previous output stays."""
        outputs = {name: previous.get(name) or "" for name in ("stdout", "stderr")}
        if command is None:
            return {**inputs, **outputs}
        earlier: dict[str, str] = {}
        if inputs.get("addPreviousOutputInEnv", True):
            known = {f"PULUMI_COMMAND_{name.upper()}": text for name, text in outputs.items()}
            earlier = {name: text for name, text in known.items() if text}
        shown = _LOGGED.get(inputs.get("logging") or "stdoutAndStderr", ())

        def line(stream: str, text: str) -> None:
            if urn and stream in shown:
                self.engine.info(urn, text)

        run = self._run_here if type_ == LOCAL else self._run_there
        status, out, err = run(urn, inputs, command, earlier, line)
        if status != 0:
            ended = f"exit status {status}"
            if type_ != LOCAL:
                ended = f"Process exited with status {status}"
            raise ProviderError(f"{ended}: running {json.dumps(command)}:\n{out}\n{err}")
        return {**inputs, "stdout": out, "stderr": err}

    def _run_there(
        self, urn: str, inputs: Values, command: str, earlier: Values, line: ssh.Line
    ) -> tuple[int, str, str]:
        environment = inputs.get("environment") or {}

        def dialled(text: str) -> None:
            self.engine.info(urn, text, passing=True)

        with ssh.connected(inputs["connection"], self.cancelled, dialled) as client:
            for name, value in environment.items():
                if not ssh.takes_variable(client, name, value):
                    raise ProviderError(
                        f'could not set environment variable "{name}": ssh: setenv failed'
                    )
            taken = dict(environment)
            for name, value in earlier.items():
                if ssh.takes_variable(client, name, value):
                    taken.setdefault(name, value)
                else:
                    self.engine.warning(urn, f"Unable to set '{name}'. {_ACCEPT_ENV}")
            return ssh.run(
                client,
                command,
                environment=taken,
                stdin=inputs.get("stdin") or "",
                line=line,
                cancelled=self.cancelled,
            )

    def _run_here(
        self, urn: str, inputs: Values, command: str, earlier: Values, line: ssh.Line
    ) -> tuple[int, str, str]:
        folder = inputs.get("dir")
        if folder and not Path(folder).is_dir():
            raise ProviderError(f"dir: '{folder}' is no folder on this machine; make it first")
        with subprocess.Popen(
            [*(inputs.get("interpreter") or ["/bin/sh", "-c"]), command],
            cwd=folder,
            env={**os.environ, **earlier, **(inputs.get("environment") or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            done = threading.Event()
            watch = threading.Thread(target=self._end_on_cancel, args=(process, done), daemon=True)
            watch.start()
            out, err = process.communicate(inputs.get("stdin") or "")
            done.set()
        if self.cancelled.is_set():
            raise ProviderError("cancelled: the command was ended")
        for name, text in (("stdout", out), ("stderr", err)):
            for each in text.splitlines():
                line(name, each)
        return process.returncode, out.removesuffix("\n"), err.removesuffix("\n")

    def _end_on_cancel(self, process: subprocess.Popen[str], done: threading.Event) -> None:
        while not done.wait(0.1):
            if self.cancelled.is_set():
                os.killpg(process.pid, signal.SIGTERM)
                return


def _connection_problems(connection: Any) -> list[tuple[str, str]]:
    if connection is None or connection is UNKNOWN:
        return []
    wrong = [] if "host" in connection else [("connection.host", "host is missing; declare it")]
    for path, part in (("connection", connection), ("connection.proxy", connection.get("proxy"))):
        if isinstance(part, dict) and "agentSocketPath" in part:
            wrong.append((f"{path}.agentSocketPath", "the agent is never used; give privateKey"))
    return wrong


def _source_problems(source: Any) -> list[tuple[str, str]]:
    if source is UNKNOWN:
        return []
    if isinstance(source, Asset) and (source.path is not None or source.text is not None):
        return []
    if isinstance(source, Archive) and source.path is not None:
        return []
    return [("source", "must be a FileAsset, a StringAsset or a FileArchive")]


def _kinds() -> str:
    return ", ".join(_REQUIRED)


if __name__ == "__main__":
    serve(CommandProvider(), "command", "1.2.1")
