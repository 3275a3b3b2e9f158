"""Stand-in for pulumi-language-python: runs the Python program for the engine, in this process.

Used only beside an engine built from source, where no official language host can be had. Owns Run
and the process's end; installs nothing, converts nothing, and serves no plugin written in Python.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from pathlib import Path

import grpc
from google.protobuf import empty_pb2
from pulumi.automation._server import LanguageServer
from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

from infra.providers.engine.serve import exit_with_parent, listen
from infra.state import PULUMI_VERSION


class LanguageHost(LanguageServer):
    """The engine's LanguageRuntime service; the automation API's own server runs the program."""

    def __init__(self, engine_address: str) -> None:
        super().__init__(lambda: None)
        self._engine_address = engine_address
        self._running = threading.Lock()

    def Handshake(self, request, context):
        self._engine_address = request.engine_address
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request, context):
        return plugin_pb2.PluginInfo(version=PULUMI_VERSION)

    def RuntimeOptionsPrompts(self, request, context):
        return language_pb2.RuntimeOptionsResponse()

    def GetProgramDependencies(self, request, context):
        return language_pb2.GetProgramDependenciesResponse()

    def InstallDependencies(self, request, context):
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "dependencies: run `make setup`")

    def Cancel(self, request, context):
        return empty_pb2.Empty()

    def Run(self, request, context):
        program = entry_point(request.info.program_directory, request.info.entry_point)
        # The pulumi runtime keeps its settings in the process: one program at a time.
        with self._running:
            os.chdir(request.pwd or request.info.program_directory)
            for folder in (str(program.parent), str(Path.cwd())):
                if folder not in sys.path:
                    sys.path.insert(0, folder)
            sys.argv = [str(program), *request.args]
            self.program = lambda: run(program)
            # LanguageServer.Run reads the engine's address from the first argument.
            del request.args[:]
            request.args.append(self._engine_address)
            result = super().Run(request, context)
            if result.error:
                # Its message is logged already: without bail the engine would print it again.
                return language_pb2.RunResponse(bail=True)
            return result


def run(program: Path) -> None:
    """Runs the program file as the main module."""
    runpy.run_path(str(program), run_name="__main__")


def entry_point(program_directory: str, name: str) -> Path:
    """The file to run: `main` of Pulumi.yaml, or `__main__.py` in it where it is a folder."""
    path = Path(program_directory, name)
    return path / "__main__.py" if path.is_dir() else path


def main() -> None:
    """Serve on a loopback port, print it, and end with the engine."""
    exit_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    positional = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    host = LanguageHost(positional[0] if positional else "")
    add = language_pb2_grpc.add_LanguageRuntimeServicer_to_server
    server, port = listen("language host", lambda server: add(host, server))
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
