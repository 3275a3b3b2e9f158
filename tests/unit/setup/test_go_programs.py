"""Programs are built by the Go that is here, of modules that have their known hashes.

The engine and kube-apiserver take minutes and are built by `make setup`. This one takes seconds,
by the same function: of a module that a folder serves as the proxy does.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.setup.tools import __main__ as parts
from infra.setup.tools.__main__ import SetupError

_NAME = "example.com/greeting"
_MODULE = f"{_NAME}@v1.0.0"
_FILES = {
    "go.mod": f"module {_NAME}\n\ngo 1.26\n",
    "cmd/greet/main.go": """package main

import "fmt"

var Version = "unknown"

func main() { fmt.Println("greet", Version) }
""",
}


def hashed(files: dict[str, str]) -> str:
    """As go.sum has it: golang.org/x/mod/sumdb/dirhash, Hash1."""
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    lines = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
    return f"h1:{base64.b64encode(hashlib.sha256(lines.encode()).digest()).decode()}"


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the module's versions; go/greet names it as go/pulumi names the engine."""
    try:
        parts.check_go("greet")
    except SetupError as error:
        pytest.skip(str(error))
    served = tmp_path / "proxy" / _NAME / "@v"
    served.mkdir(parents=True)
    (served / "v1.0.0.info").write_text('{"Version": "v1.0.0"}')
    (served / "v1.0.0.mod").write_text(_FILES["go.mod"])
    serve(served, _FILES)
    source = tmp_path / "go" / "greet"
    source.mkdir(parents=True)
    (source / "go.mod").write_text(f"module greet\n\ngo 1.26\n\nrequire {_NAME} v1.0.0\n")
    whole = hashed({f"{_MODULE}/{name}": text for name, text in _FILES.items()})
    only = hashed({"go.mod": _FILES["go.mod"]})
    (source / "go.sum").write_text(f"{_NAME} v1.0.0 {whole}\n{_NAME} v1.0.0/go.mod {only}\n")
    tools = f'//go:build tools\n\npackage tools\n\nimport _ "{_NAME}/cmd/greet"\n'
    (source / "tools.go").write_text(tools)
    monkeypatch.setattr(parts, "_SOURCES", source.parent)
    monkeypatch.setenv("GOPROXY", f"file://{tmp_path}/proxy")
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    yield served
    # What was downloaded is read-only, and pytest could not remove it.
    subprocess.run(["chmod", "-R", "u+w", tmp_path], check=True)


def serve(folder: Path, files: dict[str, str]) -> None:
    """Puts the module's archive where the proxy has it."""
    with zipfile.ZipFile(folder / "v1.0.0.zip", "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{_MODULE}/{name}", text)


def built(folder: Path) -> Path:
    """The program, as `_install_engine` has the engine built."""
    program = folder / "greet"
    variables = {"main.Version": "v9"}
    parts.build_go("greet", f"{_NAME}/cmd/greet", program, variables=variables)
    return program


@pytest.mark.feature("S002-20")
def test_a_program_is_built_of_a_module_and_says_the_version_that_it_was_given(
    proxy: Path, tmp_path: Path
) -> None:
    done = subprocess.run([built(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "greet v9\n"


@pytest.mark.feature("S002-20")
def test_a_module_with_another_hash_is_not_built(proxy: Path, tmp_path: Path) -> None:
    changed = _FILES["cmd/greet/main.go"].replace('"greet"', '"theirs"')
    serve(proxy, {**_FILES, "cmd/greet/main.go": changed})
    with pytest.raises(SetupError, match=r"(?s)checksum mismatch.*go mod download"):
        built(tmp_path)
    assert not (tmp_path / "greet").exists()
