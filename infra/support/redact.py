"""Takes secrets out of text: `Redactor(known).text(...)`. Pure.

Two nets, as each has holes: values that are known to be secret, in each form in which tools print
them, and what looks like a secret wherever it stands. Owns the forms; known.py finds the values.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

MARK: Final = "[REDACTED]"
_SHORTEST: Final = 6
"""Shorter values are words: taking them out would take the text apart."""
_NAME: Final = (
    r"(?:pass(?:word|wd|phrase)|secret|token(?!s|iz)|api[-_]?key|private[-_]?key|access[-_]?key"
    r"|client[-_]?key[-_]?data|webhook|credential|ciphertext|encryptionsalt|authorization"
    r"|storagepass|secure)"
)
"""Words that the name of a secret has; counts of text tokens are none."""
_SHAPES: Final = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        # PEM and OpenSSH keys, also cut off in the middle, also with \n written out.
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
        r"\bAGE-SECRET-KEY-1[A-Z0-9]{20,}",
        # JSON web tokens, tokens of Nebius, Hugging Face, GitHub, OpenAI, Slack, AWS's key ids.
        r"\beyJ[\w-]{8,}\.[\w-]{8,}\.?[\w-]*",
        r"\bne1[\w-]{30,}(?:\.[\w-]+)*",
        r"\bhf_[A-Za-z0-9]{20,}",
        r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}",
        r"\bsk-[\w-]{20,}",
        r"\bxox[abeoprs]-[\w-]{10,}",
        r"https://hooks\.slack\.com/[^\s\"'<>]+",
        r"\b(?:AKIA|ASIA|NAKI)[A-Z0-9]{12,}",
        # What Pulumi encrypts: useless without the passphrase, and nobody's business.
        r"\bv1:[A-Za-z0-9+/=]{8,}(?::[A-Za-z0-9+/=]+)+",
    )
)
# Each starts at the border of a word and has an end: a log of megabytes is read in one go.
_ADDRESS: Final = re.compile(r"(?<=://)[^\s/:@]{1,256}:[^\s/@]{1,256}(?=@)")
"""user:password of an address."""
_HEADER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}")
_NAMED: Final = re.compile(
    rf"(?i)((?<![\w.-])[\w.-]{{0,80}}{_NAME}[\w.-]{{0,80}}[\"']?[ \t]*[:=][ \t]*)"
    r"(?!\[REDACTED\])"
    r"(\"(?:[^\"\\\n]|\\.){0,4096}\"|'[^'\n]{0,4096}'|[\"']?[^\s{\[|>,;\"'][^\n,;}\]]*)",
)
"""`password: x`, `TOKEN=x`, `"secret": "x"`: the name stays; without quotes the line goes."""
_EMAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")


class Redactor:
    """Knows what is secret here; counts what it took out."""

    def __init__(self, known: Iterable[str] = (), *, emails: bool = False) -> None:
        """`emails`: whether addresses of people are taken out too."""
        forms = {form for secret in known for form in _forms(secret)}
        # The longest first: a secret may hold another.
        ordered = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._emails = emails
        self.num_redacted = 0

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        if self._known is not None:
            text = self._taken(self._known, text)
        for shape in _SHAPES:
            text = self._taken(shape, text)
        text = self._taken(_ADDRESS, text)
        text = self._taken(_HEADER, text, keep=True)
        text = self._taken(_NAMED, text, keep=True)
        return self._taken(_EMAIL, text) if self._emails else text

    def _taken(self, pattern: re.Pattern[str], text: str, *, keep: bool = False) -> str:
        """The text without what matches; `keep` leaves the first group."""
        replacement = rf"\1 {MARK}" if keep and pattern is _HEADER else MARK
        if keep and pattern is _NAMED:
            replacement = rf"\1{MARK}"
        text, count = pattern.subn(replacement, text)
        self.num_redacted += count
        return text


def _forms(secret: str) -> set[str]:
    """A secret as tools print it: bare, a line alone, in JSON, in an address, in base64."""
    found: set[str] = set()
    for each in {secret, secret.strip(), *secret.splitlines()}:
        bare = each.strip()
        if len(bare) < _SHORTEST or bare.startswith("-----"):
            continue
        data = bare.encode()
        found |= {bare, quote(bare, safe=""), json.dumps(bare)[1:-1]}
        # Of another length before it, base64 shifts: what is in the middle stays the same.
        for offset in range(3):
            coded = base64.b64encode(b"\0" * offset + data).decode()
            start = (0, 2, 3)[offset]
            found.add(coded[start : len(coded) - 4] if len(coded) > 12 else coded.rstrip("="))
    return {form for form in found if len(form) >= _SHORTEST}
