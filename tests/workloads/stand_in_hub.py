"""A hub and an object store on loopback: what huggingface_hub and S3 clients ask for, no more."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class StandIn:
    """What the server holds and what it was asked."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """"models/owner/name" -> files; those that end with .bin are large files with a SHA-256."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """"bucket/key" -> content."""
    etags: dict[str, str] = field(default_factory=dict)
    """"bucket/key" -> ETag, where it is not the MD5 of the content."""
    licences: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str | None = None
    """The token that opens gated repositories."""
    damaged: set[str] = field(default_factory=set)
    """Files that are served with other bytes than their hash says."""
    stop_after: int | None = None
    """The next answer with a file ends after that many bytes, once."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range header of each request for content."""
    url: str = ""


@contextlib.contextmanager
def serving(state: StandIn) -> Iterator[StandIn]:
    """Serve on a free port of 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self._answer(head=True)

        def do_GET(self) -> None:
            self._answer(head=False)

        def _answer(self, *, head: bool) -> None:
            url = urlsplit(self.path)
            path = unquote(url.path).lstrip("/")
            if path.startswith("api/") and f"/tree/{COMMIT}" in path:
                self._tree(path.removeprefix("api/").partition("/tree/")[0])
            elif path.startswith("api/"):
                self._info(path.removeprefix("api/").partition("/revision/")[0])
            elif "/resolve/" in path:
                repo, _, rest = path.partition("/resolve/")
                repo = repo if repo.startswith("datasets/") else f"models/{repo}"
                self._hub_file(repo, rest.partition("/")[2], head=head)
            else:
                self._object(path, parse_qs(url.query), head=head)

        def _may_read(self, repo: str) -> bool:
            given = self.headers.get("Authorization", "")
            return repo not in state.gated or given == f"Bearer {state.token}"

        def _info(self, repo: str) -> None:
            if repo not in state.repos:
                self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
                return
            siblings = [
                {
                    "rfilename": name,
                    "size": len(content),
                    "blobId": _git_sha1(content),
                    **({"lfs": {"sha256": _sha256(content), "size": len(content), "pointerSize": 1}}
                       if name.endswith(".bin") else {}),
                }
                for name, content in state.repos[repo].items()
            ]  # fmt: skip
            info = {
                "id": repo.partition("/")[2],
                "sha": COMMIT,
                "gated": "manual" if repo in state.gated else False,
                "siblings": siblings,
                "cardData": {"license": state.licences[repo]} if repo in state.licences else {},
            }
            self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

        def _tree(self, repo: str) -> None:
            entries = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(content),
                    "oid": _git_sha1(content),
                    **({"lfs": {"oid": _sha256(content), "size": len(content), "pointerSize": 1}}
                       if name.endswith(".bin") else {}),
                }
                for name, content in state.repos[repo].items()
            ]  # fmt: skip
            self._send(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})

        def _hub_file(self, repo: str, name: str, *, head: bool) -> None:
            content = state.repos.get(repo, {}).get(name)
            if content is None:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            elif not self._may_read(repo):
                self._send(403, b"", {"X-Error-Code": "GatedRepo"})
            else:
                etag = _sha256(content) if name.endswith(".bin") else _git_sha1(content)
                if name in state.damaged:
                    content = bytes(len(content))
                headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
                self._content(content, headers, head=head)

        def _object(self, path: str, query: dict[str, list[str]], *, head: bool) -> None:
            if path in state.objects:
                etag = state.etags.get(path) or hashlib.md5(state.objects[path]).hexdigest()
                headers = {
                    "ETag": f'"{etag}"',
                    "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT",
                }
                self._content(state.objects[path], headers, head=head)
            elif "list-type" in query:
                prefix = query.get("prefix", [""])[0]
                self._send(200, _listing(state, path.strip("/"), prefix), {})
            else:
                self._send(404, b"", {})

        def _content(self, content: bytes, headers: dict[str, str], *, head: bool) -> None:
            wanted = self.headers.get("Range")
            if not head:
                state.requests.append((self.path, wanted))
            status = 200
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                end = int(last) + 1 if last else len(content)
                total, content = len(content), content[int(first) : end]
                headers |= {
                    "Content-Range": f"bytes {first}-{int(first) + len(content) - 1}/{total}"
                }
                status = 206
            self._send(status, content, {"Accept-Ranges": "bytes", **headers}, head=head)

        def _send(
            self, status: int, body: bytes, headers: dict[str, str], *, head: bool = False
        ) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if head or self.command == "HEAD":
                return
            if state.stop_after is not None and len(body) > state.stop_after:
                body, state.stop_after = body[: state.stop_after], None
                self.close_connection = True
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listing(state: StandIn, bucket: str, prefix: str) -> bytes:
    keys = [
        (key.removeprefix(f"{bucket}/"), content)
        for key, content in sorted(state.objects.items())
        if key.startswith(f"{bucket}/{prefix}")
    ]
    entries = "".join(
        f"<Contents><Key>{key}</Key><Size>{len(content)}</Size>"
        "<LastModified>2026-11-21T00:00:00.000Z</LastModified></Contents>"
        for key, content in keys
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
        f"<Name>{bucket}</Name><Prefix>{prefix}</Prefix><KeyCount>{len(keys)}</KeyCount>"
        f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
    ).encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git_sha1(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
