"""Signatures of certificates: `ssh-keygen -Y`, detached, beside the file.

Owns the namespace, so that a signature made for anything else never counts here.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from infra.accept.errors import AcceptError
from stacks.text_file import read_bytes, read_text

NAMESPACE: Final = "soperator-acceptance"
_SIGNER: Final = "soperator"


def signature_of(path: Path) -> Path:
    """Where the signature of a file lies."""
    return path.with_name(f"{path.name}.sig")


def sign(path: Path, key: Path) -> Path:
    """Signs the file with a private SSH key; the file with the signature."""
    if not key.is_file():
        raise AcceptError(
            f"{key}: no such key; give a private key with --identity, or run `soperator local up`"
        )
    made = signature_of(path)
    made.unlink(missing_ok=True)  # ssh-keygen asks before it writes over one
    done = _run("sign", "-f", str(key), "-n", NAMESPACE, str(path))
    if done.returncode or not made.is_file():
        raise AcceptError(f"{path}: not signed with {key}: {_last(done)}")
    return made


def refuse_unusable(key: Path) -> None:
    """Refuses a key that cannot sign now: none, or one that asks for a passphrase."""
    with tempfile.TemporaryDirectory(prefix="soperator-sign-") as folder:
        probe = Path(folder) / "probe"
        probe.write_bytes(b"")
        sign(probe, key)


def public_key(key: Path) -> str:
    """The public half of a private key, as one line."""
    public = key.with_name(f"{key.name}.pub")
    try:
        return read_text(public).strip()
    except OSError as error:
        raise AcceptError(
            f"{public}: {error.strerror}; give the signer's public key with --signer"
        ) from error


def verify(path: Path, signer: str) -> None:
    """Refuses a file that is not exactly what the owner of `signer` signed."""
    signature = signature_of(path)
    for needed in (path, signature):
        if not needed.is_file():
            raise AcceptError(f"{needed}: no such file; a certificate and its .sig stay together")
    with tempfile.TemporaryDirectory(prefix="soperator-verify-") as folder:
        allowed = Path(folder) / "allowed_signers"
        allowed.write_text(f'{_SIGNER} namespaces="{NAMESPACE}" {signer}\n', encoding="utf-8")
        words = ("-f", str(allowed), "-I", _SIGNER, "-n", NAMESPACE, "-s", str(signature))
        done = _run("verify", *words, stdin=read_bytes(path))
    if done.returncode:
        raise AcceptError(
            f"{path}: not what was signed, or not by this key ({_last(done)}); get the certificate "
            "again, or name its signer with --signer"
        )


def _run(verb: str, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    if shutil.which("ssh-keygen") is None:
        raise AcceptError("ssh-keygen: not on PATH; install the OpenSSH client, 8.1 or newer")
    # A new session has no terminal to ask for a passphrase on; an agent may hold the key.
    return subprocess.run(
        ["ssh-keygen", "-Y", verb, *words],
        input=stdin,
        capture_output=True,
        check=False,
        start_new_session=True,
    )


def _last(done: subprocess.CompletedProcess[bytes]) -> str:
    text = (done.stderr or done.stdout).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else f"ssh-keygen: exit {done.returncode}"
