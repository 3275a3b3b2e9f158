"""The `encryptionsalt` of a stack file for a passphrase, as the engine writes it.

Form and constants: pulumi v3.190.0, sdk/go/common/resource/config/crypt.go and
pkg/secrets/passphrase/manager.go, read 2026-11-21: PBKDF2-SHA256, a million rounds, AES-256-GCM
over the word `pulumi`.
"""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC

PUBLIC: Final = "soperator-offline"
"""Opens the salts of the shipped stack files: for the embedded cloud and previews offline alone."""
SALT: Final = re.compile(r"^encryptionsalt: (\S+)$", re.MULTILINE)
_ROUNDS: Final = 1_000_000
_WORD: Final = b"pulumi"


def make_salt(passphrase: str) -> str:
    """A new salt, such as `v1:N0kY...=:v1:uSrn...:J0Mg...==`."""
    salt, nonce = os.urandom(8), os.urandom(12)
    sealed = AESGCM(_key(passphrase, salt)).encrypt(nonce, _WORD, None)
    parts = [base64.b64encode(part).decode() for part in (salt, nonce, sealed)]
    return f"v1:{parts[0]}:v1:{parts[1]}:{parts[2]}"


def opens(passphrase: str, text: str) -> bool:
    """Whether the passphrase is the one that the salt was made for."""
    try:
        _, salt, _, nonce, sealed = text.split(":")
        crypter = AESGCM(_key(passphrase, base64.b64decode(salt)))
        return crypter.decrypt(base64.b64decode(nonce), base64.b64decode(sealed), None) == _WORD
    except (InvalidTag, ValueError):  # of another passphrase; cut short or mistyped
        return False


def public_problem(stack_file: Path) -> str | None:
    """Why no state of a real cluster may be made with this stack file, and the fix; None: it may.

    A file without a salt has another provider of secrets, or gets a salt from the engine.
    """
    salt = SALT.search(stack_file.read_text(encoding="utf-8")) if stack_file.is_file() else None
    if salt is None or not opens(PUBLIC, salt.group(1)):
        return None
    stack = stack_file.name.removeprefix("Pulumi.").removesuffix(".yaml")
    return (
        f"{stack_file.name}.encryptionsalt: is of the passphrase of the shipped stacks, which "
        "everybody knows: whoever reads the state would have the deploy key, which is root's on "
        "the login node; expected a passphrase of your own: `PULUMI_CONFIG_PASSPHRASE="
        f"{PUBLIC} pulumi stack change-secrets-provider passphrase --stack {stack}` asks for it, "
        "and PULUMI_CONFIG_PASSPHRASE_FILE names it from then on; or `soperator init` writes a "
        "stack of your own"
    )


def _key(passphrase: str, salt: bytes) -> bytes:
    return PBKDF2HMAC(SHA256(), 32, salt, _ROUNDS).derive(passphrase.encode())
