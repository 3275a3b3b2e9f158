"""A support bundle: parts, redacted, in one tar of mode 0600 with a list of what is in it.

Two nets, as each has holes: values that are known to be secret, in each form in which tools print
them, and what looks like a secret wherever it stands. Uploads nothing: who sends it has read the
list first.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from infra.operate.support_parts import NotRunError, Part, gather

MARK: Final = "[REDACTED]"
_SHORTEST: Final = 6
"""Shorter values are words: taking them out would take the text apart."""
_QUOTE: Final = r"(?:\\{0,8}[\"'])?"
"""A quote or none, also as it stands in JSON within JSON."""
_NAME: Final = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret|token(?!s|iz)|api[-_]?key|private[-_]?key"
    r"|access[-_]?key|client[-_]?key[-_]?data|webhook|credential|ciphertext|encryptionsalt"
    r"|authorization|storagepass|secure"
    rf"|tokens(?={_QUOTE}[ \t]*[:=](?![ \t]*{_QUOTE}[\d.,_]+[kKMGT%]?(?:[\s/,;)}}\]\"']|\Z))))"
)
"""Words that the name of a secret has; counts of text tokens are none."""
_NAMED_WORD: Final = rf"[\w.-]{{0,80}}{_NAME}[\w.-]{{0,80}}"
_SHAPES: Final = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        # PEM and OpenSSH keys, also cut off in the middle, also with \n written out.
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
        # "-----BEGIN" in base64, on one line or on many.
        r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]{20,}(?:\n[ \t]*[A-Za-z0-9+/=]+[ \t]*(?=\n|\Z))*",
        r"\bAGE-SECRET-KEY-1[A-Z0-9]{20,}",
        # JSON web tokens, tokens of Nebius, Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS's ids.
        r"\beyJ[\w-]{8,}\.[\w-]{8,}\.?[\w-]*",
        r"\bne1[\w-]{30,}(?:\.[\w-]+)*",
        r"\bhf_[A-Za-z0-9]{20,}",
        r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}",
        r"\bglpat-[\w.-]{16,}",
        r"\bsk-[\w-]{20,}",
        r"\bx(?:ox[abeoprs]|app)-[\w-]{10,}",
        r"https://hooks\.slack\.com/[^\s\"'<>]+",
        r"https://(?:\w{1,20}\.)?discord(?:app)?\.com/api/webhooks/[^\s\"'<>]+",
        r"\bAIza[\w-]{30,}",
        r"\b(?:AKIA|ASIA|NAKI)[A-Z0-9]{12,}",
        # What Pulumi encrypts: useless without the passphrase, and nobody's business.
        r"\bv1:[A-Za-z0-9+/=]{8,}(?::[A-Za-z0-9+/=]+)+",
    )
)
# A key whose begin is cut off is looked for from its end: forwards, each line of letters would
# start one, and a log of such lines would take hours.
_KEY_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_KEY_BACKWARDS: Final = re.compile(
    r"(?:[ \t]*(?:\n|n\\)(?:r\\)?[ \t\r]*(?:[A-Za-z0-9+/=](?!\\))+)*"
)
_LONGEST_KEY: Final = 20_000
"""Characters; RSA of 16384 bits has 12,700."""
_VALUE: Final = (
    r"(?!\[REDACTED\])(?:"
    r"(?P<escape>\\{1,8})[\"'][^\n]{0,4096}?(?<!\\)(?P=escape)[\"']"
    r"|\"(?:[^\"\\\n]|\\.){0,4096}\""
    r"|'(?:[^'\\\n]|\\.|''){0,4096}'"
    r"|\[[^\]\n]{0,4096}\]?"
    r"|[\"']?(?:[^\s{\[|>,;\"']|[|>](?![-+\d]{0,2}[ \t]*(?:[\n#]|\Z)))"
    r"[^\n,;}\]]*(?:[,;}\]]+(?=[^\s,;}\]\"'])[^\n,;}\]]*)*)"
)
"""In quotes, a list, or to the end of the line; a comma before more letters is part of it."""
_WORD: Final = r"(?!\[REDACTED\])(?:\"[^\"\n]{0,4096}\"|'[^'\n]{0,4096}'|\S+)"
# Each starts at the border of a word and has an end: a log of megabytes is read in one go.
# What is in `kept` stays: the name of what went.
_CALLED: Final = tuple(
    re.compile(rf"(?im){pattern}")
    for pattern in (
        # user:password of an address, a password alone, a token alone.
        (
            r"(?<=://)[^\s/:@\"']{0,256}:[^\s\"']{1,256}(?=@)"
            r"|(?<=://)(?!\[REDACTED\]@)[^\s/:@\"']{8,256}(?=@)"
        ),
        r"(?P<kept>\b(?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{8,}",
        # `password: |`, `>-`, `[` or nothing, and the value on the lines below, further in.
        (
            r"(?P<kept>^(?P<indent>[ \t]{0,200})(?:-[ \t]+)?"
            rf"[\"']?{_NAMED_WORD}[\"']?[ \t]*:[ \t]*"
            r"(?:[|>][-+\d]{0,2}|\[)?[ \t]*(?:#[^\n]*)?\n(?:[ \t]*\n){0,3}"
            r"(?P=indent)(?:[ \t]+(?=\S)|(?=-[ \t])))"
            r"\S[^\n]*(?:\n(?:[ \t]*\n){0,3}(?P=indent)(?:[ \t]+\S|-[ \t])[^\n]*)*"
        ),
        # `password: x`, `TOKEN=x`, `"secret": "x"`.
        rf"(?P<kept>(?<![\w.-]){_NAMED_WORD}{_QUOTE}[ \t]*[:=][=>]?[ \t]*){_VALUE}",
        # {"name": "DB_PASSWORD", "value": "x"}, on one line or on two.
        (
            rf"(?P<kept>\b(?:name|key){_QUOTE}[ \t]*[:=][ \t]*{_QUOTE}{_NAMED_WORD}{_QUOTE}[ \t]*,?"
            rf"\s{{0,200}}{_QUOTE}value{_QUOTE}[ \t]*[:=][ \t]*){_VALUE}"
        ),
        # `--token x`, also as a list of words.
        (
            rf"(?P<kept>(?<![\w-])--?[\w-]{{0,40}}{_NAME}[\w-]{{0,40}}"
            rf"(?:{_QUOTE}[ \t]*,\s{{0,200}}|{_QUOTE}\n[ \t]*-[ \t]+|[ \t]+)){_WORD}"
        ),
        # `ENV HF_TOKEN x` of an image, `setenv`; a .netrc.
        (
            rf"(?P<kept>\b(?:env|arg|setenv)[ \t]+\w{{0,80}}{_NAME}\w{{0,80}}[ \t]+)"
            r"(?!\[REDACTED\])\S[^\n]*"
        ),
        rf"(?P<kept>\b(?:machine|login|account|default)[ \t]+\S{{1,256}}\s+password[ \t]+){_WORD}",
        rf"(?P<kept>^[ \t]*password[ \t]+){_WORD}(?=[ \t]*$)",
        # Names that are secret as a whole only: `auth` stands in AuthType, `key` is any key.
        (
            r"(?P<kept>(?<![\w.-])(?:_?auth"
            r"|(?!\w{0,80}(?:public|host|primary|foreign|sort)_key)\w{1,80}_key)"
            rf"{_QUOTE}[ \t]*[:=][ \t]*){_VALUE}"
        ),
        r"(?P<kept>\bcookie[\"']?[ \t]*:[ \t]*)(?!\[REDACTED\])[^\n]+",
        # Signed addresses of S3, Google and Azure.
        r"(?P<kept>[?&](?:x-(?:amz|goog)-)?sig(?:nature)?=)(?!\[REDACTED\])[^\s&\"'<>]+",
        # Command lines whose word has no name.
        (
            r"(?P<kept>\bcurl\b[^\n|;]{0,200}?[ \t](?:-u|--user|--proxy-user)[ \t=]{0,9}"
            rf"[\"']?[^\s:\"']{{0,99}}:){_WORD}"
        ),
        (
            r"(?P<kept>\b(?:mysql|mariadb)(?:-?(?:dump|admin))?[ \t](?:[^\n|;]{0,200}?[ \t])?-p)"
            r"(?!\[REDACTED\])[^\s-]\S*"
        ),
        rf"(?P<kept>\bsshpass[ \t]+-p[ \t]*){_WORD}",
        rf"(?P<kept>\b(?:wandb|hf[ \t]+auth|huggingface-cli)[ \t]+login[ \t]+)(?!-){_WORD}",
    )
)
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
        text = self._without_ends(text)
        for called in _CALLED:
            text = self._taken(called, text)
        return self._taken(_EMAIL, text) if self._emails else text

    def _taken(self, pattern: re.Pattern[str], text: str) -> str:
        """The text without what matches, but for its group `kept`."""
        replacement = rf"\g<kept>{MARK}" if "kept" in pattern.groupindex else MARK
        text, count = pattern.subn(replacement, text)
        self.num_redacted += count
        return text

    def _without_ends(self, text: str) -> str:
        """The text without keys whose begin is not in it."""
        pieces: list[str] = []
        last = 0
        for end in _KEY_END.finditer(text):
            before = text[max(last, end.start() - _LONGEST_KEY) : end.start()][::-1]
            found = _KEY_BACKWARDS.match(before)
            length = 0 if found is None else found.end()
            pieces += [text[last : end.start() - length], MARK]
            last = end.end()
            self.num_redacted += 1
        return "".join([*pieces, text[last:]])


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


INDEX: Final = "INDEX.txt"
_LONGEST: Final = 2_000_000
"""Characters of one part that are kept, the last ones."""


def write_bundle(
    parts: Iterable[Part],
    path: Path,
    *,
    stack: str,
    redactor: Redactor,
    now: datetime,
    say: Callable[[str], None],
) -> tuple[str, bool]:
    """Gather, redact and write; the file appears whole or not at all.

    Returns its list, and whether every part is in it.
    """
    folder = path.name.removesuffix(".gz").removesuffix(".tar")
    lines = [
        f"Support bundle of stack {stack}, {now:%Y-%m-%d %H:%M:%S} UTC.",
        "Nothing was sent anywhere. Read it before you do: secrets are taken out by value and by",
        "shape, but names of your jobs, nodes and files are in it.",
        "",
    ]
    texts: dict[str, bytes] = {}
    is_whole = True
    for part in parts:
        say(part.name)
        about = f"{part.name}: {part.says}"
        try:
            data = texts[part.name] = redactor.text(_cut(gather(part))).encode()
        except NotRunError as error:
            is_whole = False
            lines.append(f"NOT RUN  {about}: {error}")
        else:
            digest = hashlib.sha256(data).hexdigest()
            lines.append(f"{len(data):>9} bytes  {about}  sha256 {digest}")
    index = redactor.text("\n".join(lines) + "\n")
    index += f"redacted: {redactor.num_redacted} places\n"
    texts = {INDEX: index.encode(), **texts}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for name, data in texts.items():
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(now.timestamp())
                archive.addfile(entry, io.BytesIO(data))
        _place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return index, is_whole


def _place(temporary: Path, path: Path) -> None:
    """Give the file its name; FileExistsError where another has it by now."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        # A filesystem without second names.
        temporary.replace(path)


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    # Of a line without its begin nobody can say whether it was called a secret.
    kept = text[-_LONGEST:].partition("\n")[2]
    return f"... {len(text) - len(kept)} characters before this are left out\n{kept}"
