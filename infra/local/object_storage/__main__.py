"""The S3 calls that the project makes, on files, served by a process of its own.

    python -m infra.local.object_storage --state DIR --cloud DIR --port P

Prints one line when it is ready. Writes into DIR of --state only, and descriptors into the cache;
--cloud is the state folder of the emulated Nebius API, which says which buckets, keys and rights
there are. Listens on 127.0.0.1 only. An object is one file, written whole or not at all; a bucket
that was made anew has another id, so it starts empty. Keeps no older versions of a key.

Signatures: docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html and, for a body in
chunks that are signed one after the other, sigv4-streaming.html (2026-11).
"""

from __future__ import annotations

import argparse
import email.utils
import hashlib
import hmac
import os
import re
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from infra.local.nebius_api import states
from infra.providers.nebius.schema import Schema

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
CONTENT_HASH: Final = "x-amz-content-sha256"
CHUNKED: Final = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
"""What stands for the hash of a body in signed chunks."""
_NOTHING: Final = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What an Authorization header says."""

    key_id: str
    scope: str
    """Day, region, service and a last word, with slashes."""
    signed: tuple[str, ...]
    """Names of the headers that are part of the signature."""
    signature: str


_CLAIM: Final = re.compile(
    rf"{_ALGORITHM} +Credential=(?P<key_id>[^/,]*)/(?P<scope>[^/,]*(?:/[^/,]*){{3}}), *"
    r"SignedHeaders=(?P<signed>[^,]*), *Signature=(?P<signature>[^,]*)"
)


def read_claim(header: str) -> Claim | None:
    """The claim; None for a header that is no such signature."""
    if (found := _CLAIM.fullmatch(header)) is None:
        return None
    return Claim(**{**found.groupdict(), "signed": tuple(found["signed"].split(";"))})


def is_signed(
    claim: Claim, secret: str, *, method: str, path: str, query: str, headers: Mapping[str, str]
) -> bool:
    """Whether the secret made the signature; `path` and `query` as sent, headers lower case."""
    pairs = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(query, keep_blank_values=True)
    )
    lines = (
        method,
        path,
        "&".join(f"{name}={value}" for name, value in pairs),
        *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in claim.signed),
        "",
        ";".join(claim.signed),
        headers.get(CONTENT_HASH, ""),
    )
    request = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    made = _sign(claim, secret, _ALGORITHM, headers.get("x-amz-date", ""), claim.scope, request)
    return hmac.compare_digest(made, claim.signature)


def join_chunks(body: bytes, claim: Claim, secret: str, date: str) -> bytes | None:
    """The content of a body in chunks; None where one is cut or not what was signed."""
    content, before = bytearray(), claim.signature
    while True:
        head, found, body = body.partition(b"\r\n")
        size, _, signature = head.decode("ascii", "replace").partition(";chunk-signature=")
        try:
            count = int(size, 16)
        except ValueError:
            return None
        chunk, body = body[:count], body[count:]
        hashed = hashlib.sha256(chunk).hexdigest()
        signed = (f"{_ALGORITHM}-PAYLOAD", date, claim.scope, before, _NOTHING, hashed)
        made = _sign(claim, secret, *signed)
        if not found or len(chunk) != count or not hmac.compare_digest(made, signature):
            return None
        if not count:
            return bytes(content)
        content += chunk
        before, body = signature, body.removeprefix(b"\r\n")


def _sign(claim: Claim, secret: str, *lines: str) -> str:
    key = f"AWS4{secret}".encode()
    for part in claim.scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, "\n".join(lines).encode(), "sha256").hex()


# What the roles of docs.nebius.com/iam/authorization/roles (2026-11) say about objects; the others
# of the emulator's projects have no right on any.
_READERS: Final = frozenset({"viewer", "storage.viewer"})
_WRITERS: Final = frozenset(
    {"admin", "editor", "storage.admin", "storage.editor", "storage.object-editor"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket of the cloud."""

    id: str
    holders: frozenset[str]
    """Its own id and those of the project and tenant that it is in."""


class Access:
    """Look-ups in the emulated cloud."""

    def __init__(self, cloud: Path, schema: Schema, clock: Callable[[], float] = time.time) -> None:
        """`cloud` is the state folder of the emulated Nebius API."""
        self._file = cloud / "nebius.sqlite"
        self._schema = schema
        self._clock = clock

    def bucket(self, name: str) -> Bucket | None:
        """The bucket of this name; names are unique in the whole cloud."""
        for found in self._all("storagebucket"):
            if found.metadata.name == name:
                holders, parent = {found.metadata.id}, found.metadata.parent_id
                above = self._all(parent.partition("-")[0]) if parent else []
                holders |= {
                    parent,
                    *(x.metadata.parent_id for x in above if x.metadata.id == parent),
                }
                return Bucket(id=found.metadata.id, holders=frozenset(holders - {""}))
        return None

    def secret(self, key_id: str) -> str | None:
        """The secret of a key that exists and has not ended."""
        key = self._key(key_id)
        return None if key is None else states.secret(key.metadata.id)

    def may(self, key_id: str, bucket: Bucket, *, write: bool) -> bool:
        """Whether the account of the key may read, or write, what the bucket holds."""
        key = self._key(key_id)
        if key is None:
            return False
        account = key.spec.account.service_account.id
        allowed = _WRITERS if write else _WRITERS | _READERS
        groups = {
            found.metadata.parent_id
            for found in self._all("groupmembership")
            if found.spec.member_id == account
        }
        return any(
            found.spec.role in allowed
            for found in self._all("accesspermit")
            if found.metadata.parent_id in groups and found.spec.resource_id in bucket.holders
        )

    def _key(self, key_id: str) -> Any | None:
        for found in self._all("accesskey"):
            if states.key_id(found.metadata.id) == key_id:
                ends = found.spec.expires_at
                ended = found.spec.HasField("expires_at") and ends.seconds <= self._clock()
                return None if ended else found
        return None

    def _all(self, kind: str) -> list[Any]:
        """Every resource with this id prefix; none where the cloud never started."""
        if not self._file.exists():
            return []
        query = "SELECT type, body FROM resources WHERE substr(id, 1, ?) = ?"
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)) as database:
            rows = database.execute(query, (len(kind) + 1, f"{kind}-")).fetchall()
        return [self._schema.message(type_).FromString(body) for type_, body in rows]


_LONGEST: Final = 255
"""Bytes of a file's name."""
_PARTIAL: Final = ".partial-"
"""Start of a name that no key has: quote() leaves the dot, so such a key is refused."""


class S3Error(Exception):
    """A refusal in the words of S3."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One object."""

    key: str
    size: int
    modified: datetime
    tag: str
    """Changes with every write; S3 promises no more for all objects."""


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of every bucket under one folder."""

    folder: Path

    def put(self, bucket_id: str, key: str, content: bytes) -> Stored:
        """Writes an object over the one of the same key."""
        path = self._path(bucket_id, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=_PARTIAL, dir=path.parent)
        with os.fdopen(handle, "wb") as new:
            new.write(content)
        Path(partial).replace(path)
        return _stored(key, path)

    def find(self, bucket_id: str, key: str) -> Stored | None:
        """The object without its content, or None."""
        try:
            return _stored(key, self._path(bucket_id, key))
        except FileNotFoundError:
            return None

    def read(self, bucket_id: str, key: str, start: int, count: int) -> bytes:
        """Bytes of an object from `start`."""
        with self._path(bucket_id, key).open("rb") as file:
            file.seek(start)
            return file.read(count)

    def delete(self, bucket_id: str, key: str) -> None:
        """Removes an object that may be gone already."""
        self._path(bucket_id, key).unlink(missing_ok=True)

    def keys(self, bucket_id: str, prefix: str) -> Iterator[str]:
        """Keys with the prefix, in the order of their UTF-8 bytes."""
        folder = self.folder / bucket_id
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        keys = (unquote(name) for name in names if not name.startswith(_PARTIAL))
        yield from sorted((key for key in keys if key.startswith(prefix)), key=str.encode)

    def _path(self, bucket_id: str, key: str) -> Path:
        name = quote(key, safe="")
        if len(name) > _LONGEST or name in (".", "..") or name.startswith(_PARTIAL):
            told = f"key of {len(key)} characters cannot be kept: at most {_LONGEST} after encoding"
            raise S3Error(400, "KeyTooLongError", told)
        return self.folder / bucket_id / name


def _stored(key: str, path: Path) -> Stored:
    found = path.stat()
    tag = hashlib.sha256(f"{found.st_ino} {found.st_mtime_ns} {found.st_size}".encode())
    return Stored(
        key=key,
        size=found.st_size,
        modified=datetime.fromtimestamp(found.st_mtime, UTC),
        tag=tag.hexdigest()[:32],
    )


REGION: Final = "eu-north1"
_PAGE: Final = 1000
_XML: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NAMESPACE: Final = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_LISTING: Final = frozenset(
    {
        *("list-type", "prefix", "delimiter", "max-keys", "encoding-type", "fetch-owner"),
        *("start-after", "continuation-token"),
    }
)
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")
_SIGNED_S: Final = 15 * 60
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_UNSIGNED: Final = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What goes back."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call, already let in."""

    method: str
    bucket: Bucket
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class ObjectStorage:
    """The calls."""

    def __init__(
        self, access: Access, objects: Objects, clock: Callable[[], float] = time.time
    ) -> None:
        self._access = access
        self._objects = objects
        self._clock = clock

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to one call; header names are lower case."""
        try:
            return self._dispatch(self._let_in(method, target, headers, body))
        except S3Error as error:
            return refused(error)

    def _let_in(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Request:
        parts = urlsplit(target)
        claim = read_claim(headers.get("authorization", ""))
        if claim is None:
            raise S3Error(403, "AccessDenied", "no signature of version 4 in the header")
        secret = self._access.secret(claim.key_id)
        if secret is None:
            raise S3Error(403, "InvalidAccessKeyId", f"no key {claim.key_id}, or it has ended")
        try:
            signed = datetime.strptime(headers.get("x-amz-date", ""), "%Y%m%dT%H%M%S%z")
        except ValueError as error:
            raise S3Error(403, "AccessDenied", f"x-amz-date: {error}") from error
        if abs(self._clock() - signed.timestamp()) > _SIGNED_S:
            raise S3Error(403, "RequestTimeTooSkewed", "signed too long ago, or not yet")
        wire = {"method": method, "path": parts.path, "query": parts.query}
        if not is_signed(claim, secret, **wire, headers=headers):
            raise S3Error(403, "SignatureDoesNotMatch", "the secret did not make the signature")
        content = _content(headers, body, claim, secret)
        name, _, key = parts.path.lstrip("/").partition("/")
        bucket = self._access.bucket(unquote(name))
        if bucket is None:
            raise S3Error(404, "NoSuchBucket", f"no bucket {unquote(name)!r}")
        writes = method not in ("GET", "HEAD")
        if not self._access.may(claim.key_id, bucket, write=writes):
            verb = "write to" if writes else "read"
            raise S3Error(403, "AccessDenied", f"{claim.key_id} may not {verb} {unquote(name)!r}")
        return Request(
            method=method,
            bucket=bucket,
            key=unquote(key),
            query=dict(parse_qsl(parts.query, keep_blank_values=True)),
            headers=headers,
            body=content,
        )

    def _dispatch(self, request: Request) -> Answer:
        if not request.key:
            return self._of_bucket(request)
        if request.query.keys() - {"x-id"} or "x-amz-copy-source" in request.headers:
            raise S3Error(501, "NotImplemented", "only whole objects are read and written here")
        if request.method == "PUT":
            stored = self._objects.put(request.bucket.id, request.key, request.body)
            return Answer(headers={"ETag": f'"{stored.tag}"'})
        if request.method == "DELETE":
            self._objects.delete(request.bucket.id, request.key)
            return Answer(status=204)
        if request.method in ("GET", "HEAD"):
            return self._read(request)
        raise S3Error(501, "NotImplemented", f"{request.method} of an object")

    def _of_bucket(self, request: Request) -> Answer:
        if request.method == "HEAD":
            return Answer(headers={"x-amz-bucket-region": REGION})
        if request.method == "GET" and "location" in request.query:
            return _xml(f"<LocationConstraint {_NAMESPACE}>{REGION}</LocationConstraint>")
        if request.method == "POST" and request.query.keys() == {"delete"}:
            return self._delete_many(request)
        if request.method == "GET" and {"list-type"} <= request.query.keys() <= _LISTING:
            return self._list(request)
        asked = ", ".join(request.query) or "no sub-resource"
        raise S3Error(501, "NotImplemented", f"{request.method} of a bucket with {asked}")

    def _delete_many(self, request: Request) -> Answer:
        try:
            asked = ElementTree.fromstring(request.body)  # noqa: S314  # signed, by loopback
        except ElementTree.ParseError as error:
            raise S3Error(400, "MalformedXML", str(error)) from error
        keys = [found.text or "" for found in asked.iterfind("{*}Object/{*}Key")]
        for key in keys:
            self._objects.delete(request.bucket.id, key)
        done = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return _xml(f"<DeleteResult {_NAMESPACE}>{done}</DeleteResult>")

    def _read(self, request: Request) -> Answer:
        stored = self._objects.find(request.bucket.id, request.key)
        if stored is None:
            raise S3Error(404, "NoSuchKey", f"no object {request.key!r}")
        headers = {
            "ETag": f'"{stored.tag}"',
            "Last-Modified": email.utils.format_datetime(stored.modified, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if request.method == "HEAD":
            return Answer(headers={**headers, "Content-Length": str(stored.size)})
        start, end = _range(request.headers.get("range", ""), stored)
        partial = (start, end) != (0, stored.size)
        if partial:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{stored.size}"
        body = self._objects.read(request.bucket.id, request.key, start, end - start)
        return Answer(status=206 if partial else 200, body=body, headers=headers)

    def _list(self, request: Request) -> Answer:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        quoted = query.get("encoding-type") == "url"
        show = _quoted if quoted else escape
        asked = query.get("max-keys") or str(_PAGE)
        if not asked.isdecimal():
            raise S3Error(400, "InvalidArgument", f"max-keys {asked!r} is no count")
        size = min(int(asked), _PAGE)
        entries: list[str] = []
        last, shown, cut = "", set[str](), False
        for key in self._objects.keys(request.bucket.id, prefix):
            head, found, _ = key.removeprefix(prefix).partition(delimiter or "\0")
            group = f"{prefix}{head}{delimiter}" if delimiter and found else ""
            name = group or key
            # A group is listed once, and a page that ended with it does not bring it again.
            if name in shown or name.encode() <= after.encode():
                continue
            if len(shown) == size:
                cut = size > 0
                break
            stored = None if group else self._objects.find(request.bucket.id, key)
            if group:
                entries.append(f"<CommonPrefixes><Prefix>{show(group)}</Prefix></CommonPrefixes>")
            elif stored is None:  # deleted meanwhile
                continue
            else:
                entries.append(_entry(stored, show(key)))
            shown.add(name)
            last = name
        more = f"<IsTruncated>{str(cut).lower()}</IsTruncated>"
        if cut:
            more += f"<NextContinuationToken>{show(last)}</NextContinuationToken>"
        return _xml(
            f"<ListBucketResult {_NAMESPACE}><Prefix>{show(prefix)}</Prefix>"
            f"{'<EncodingType>url</EncodingType>' if quoted else ''}"
            f"<KeyCount>{len(shown)}</KeyCount>"
            f"<MaxKeys>{size}</MaxKeys>{more}{''.join(entries)}</ListBucketResult>"
        )


def _content(headers: Mapping[str, str], body: bytes, claim: Claim, secret: str) -> bytes:
    """The body without its chunks, checked against what was signed."""
    declared = headers.get(CONTENT_HASH, "")
    if declared == _UNSIGNED:
        return body
    if declared == CHUNKED:
        content = join_chunks(body, claim, secret, headers.get("x-amz-date", ""))
        if content is None:
            raise S3Error(403, "SignatureDoesNotMatch", "a chunk is not what was signed")
        return content
    if not _HEX.fullmatch(declared):
        raise S3Error(501, "NotImplemented", f"{CONTENT_HASH} {declared!r}")
    if hashlib.sha256(body).hexdigest() != declared:
        raise S3Error(400, "XAmzContentSHA256Mismatch", "the body is not what was signed")
    return body


def _range(header: str, stored: Stored) -> tuple[int, int]:
    """First byte and the one after the last."""
    asked = _RANGE.fullmatch(header)
    if asked is None:
        return 0, stored.size
    start = int(asked[1])
    end = min(int(asked[2]) + 1, stored.size) if asked[2] else stored.size
    if start >= end:
        raise S3Error(416, "InvalidRange", f"{header} of {stored.size} bytes")
    return start, end


def _entry(stored: Stored, key: str) -> str:
    modified = stored.modified.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return (
        f"<Contents><Key>{key}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>&quot;{stored.tag}&quot;</ETag><Size>{stored.size}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


def _quoted(key: str) -> str:
    return quote(key, safe="/-_.~")


def _xml(text: str, status: int = 200) -> Answer:
    headers = {"Content-Type": "application/xml"}
    return Answer(status=status, body=f"{_XML}{text}".encode(), headers=headers)


def refused(error: S3Error) -> Answer:
    """The answer that says so."""
    text = f"<Error><Code>{error.code}</Code><Message>{escape(str(error))}</Message></Error>"
    return _xml(text, error.status)


_LARGEST: Final = 512 << 20


def make_server(storage: ObjectStorage, port: int) -> ThreadingHTTPServer:
    """A server on 127.0.0.1 that is bound and not yet serving; port 0 takes a free one."""

    class Handler(_Handler):
        calls = storage

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body go out in two writes: without this the second waits for the client's answer.
    disable_nagle_algorithm = True
    calls: ObjectStorage

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        size = int(headers.get("content-length") or 0)
        if size > _LARGEST or "transfer-encoding" in headers:
            self.close_connection = True
            self._send(refused(S3Error(501, "NotImplemented", "no body of this size or coding")))
            return
        body = self.rfile.read(size)
        self._send(self.calls.answer(self.command, self.path, headers, body))

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = _serve  # noqa: N815  # http.server's names

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        headers = {"Content-Length": str(len(answer.body)), **(answer.headers or {})}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs no call: a copy of the jail makes thousands."""


def main() -> int:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m infra.local.object_storage")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR")
    parser.add_argument("--cloud", type=Path, required=True, metavar="DIR")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    options = parser.parse_args()
    storage = ObjectStorage(Access(options.cloud, Schema.shared()), Objects(options.state))
    try:
        server = make_server(storage, options.port)
    except OSError as error:
        print(f"object storage: {error}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        # From another thread: shutdown() waits for the loop that the handler interrupts.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"object storage ready on http://127.0.0.1:{server.server_address[1]}", flush=True)
    with server:
        server.serve_forever(poll_interval=0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
