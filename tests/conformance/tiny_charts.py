"""Helm charts of a few lines, and a chart repository on loopback that serves them."""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

NOTE: Final = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}-note}
data: {text: {{ .Values.text | quote }}}
"""
NEVER_READY: Final = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}-pods}
spec:
  selector: {matchLabels: {app: tiny}}
  template:
    metadata: {labels: {app: tiny}}
    spec: {containers: [{name: main, image: none}]}
"""
CHARTS: Final[Mapping[str, Mapping[str, str]]] = {
    "tiny": {"note.yaml": NOTE},
    "tiny-slow": {"note.yaml": NOTE, "pods.yaml": NEVER_READY},
}
VERSION: Final = "1.0.0"


@contextlib.contextmanager
def served_charts(folder: Path) -> Iterator[str]:
    """The address of a repository that has every chart of this module."""
    entries = []
    for name, templates in CHARTS.items():
        archive = f"{name}-{VERSION}.tgz"
        (folder / archive).write_bytes(_packed(name, templates))
        entries.append(
            f"  {name}: [{{apiVersion: v2, name: {name}, version: {VERSION}, urls: [{archive}]}}]"
        )
    (folder / "index.yaml").write_text("\n".join(["apiVersion: v1", "entries:", *entries]))
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        return


def _packed(name: str, templates: Mapping[str, str]) -> bytes:
    files = {
        "Chart.yaml": f"apiVersion: v2\nname: {name}\nversion: {VERSION}\nappVersion: '7'\n",
        "values.yaml": "text: default\n",
        **{f"templates/{file}": text for file, text in templates.items()},
    }
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()
