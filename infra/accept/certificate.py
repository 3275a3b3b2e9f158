"""The certificate of one acceptance: its facts as JSON, its page, both signed.

Owns the format `soperator-certificate`, version 1, and the folder that holds it. What a check means
is in the result; what a failure costs in price.py.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from infra.accept import page, signature
from infra.accept.errors import AcceptError
from infra.accept.price import accepting_usd
from infra.accept.result import Result
from stacks.text_file import read_text

SCHEMA: Final = "soperator-certificate"
SCHEMA_VERSION: Final = 1
JSON_NAME: Final = "certificate.json"
HTML_NAME: Final = "certificate.html"
_OPEN: Final = '<script type="application/json" id="certificate">'


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What was written."""

    folder: Path
    json: Path
    html: Path
    signatures: tuple[Path, ...]


def content(
    result: Result,
    *,
    stack: str,
    prices: Mapping[str, Decimal | None],
    price_note: str,
    now: datetime | None = None,
) -> dict[str, Any]:
    """The certificate as plain values; dollars are text with two decimals."""
    made = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    checks: list[dict[str, Any]] = []
    for check in result.checks:
        usd = accepting_usd(check, prices)
        cost = None if usd is None else f"{usd:.2f}"
        checks.append({**asdict(check), "nodes": list(check.nodes), "usd_per_month": cost})
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "stack": stack,
        "made_at": made,
        "measured_on": result.finished_at[:10],
        "outcome": result.outcome,
        "profile": result.profile,
        "stages": list(result.stages),
        "started_at": result.started_at,
        "finished_at": result.finished_at,
        "hardware": {**result.hardware, "certifies": result.certifies},
        "versions": dict(result.versions),
        "nodes": [dict(node) for node in result.nodes],
        "runs": [dict(run) for run in result.runs],
        "checks": checks,
        "prices": {
            "note": price_note,
            "node_usd_per_month": {
                name: None if usd is None else f"{usd:.2f}" for name, usd in prices.items()
            },
        },
        "measurements": dict(result.measurements),
    }


def refuse_full(folder: Path) -> None:
    """Refuses a folder that holds a certificate already."""
    if (folder / JSON_NAME).exists():
        raise AcceptError(f"{folder}: holds a certificate; give another --output")


def write(values: Mapping[str, Any], folder: Path, key: Path) -> Files:
    """Writes and signs both files, or nothing; a folder that holds a certificate is refused."""
    refuse_full(folder)
    text = json.dumps(values, indent=2, sort_keys=False) + "\n"
    texts = {HTML_NAME: embed(page.render(values), text), JSON_NAME: text}
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Whole and signed before the first has its name: what lies there is a certificate.
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as aside:
            for name, written in texts.items():
                (Path(aside) / name).write_text(written, encoding="utf-8")
                signature.sign(Path(aside) / name, key)
            for name in texts:
                signature.signature_of(Path(aside) / name).replace(
                    signature.signature_of(folder / name)
                )
                (Path(aside) / name).replace(folder / name)
    except (OSError, AcceptError) as error:
        if is_new and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if isinstance(error, AcceptError):
            raise
        raise AcceptError(
            f"{folder}: {error.strerror}; no certificate was written, and what was measured stays "
            "where it is: make room or give another --output, with --result acceptance.json"
        ) from error
    return Files(
        folder=folder,
        json=folder / JSON_NAME,
        html=folder / HTML_NAME,
        signatures=tuple(signature.signature_of(folder / name) for name in texts),
    )


def verify(path: Path, signer: str) -> dict[str, Any]:
    """The certificate in a JSON or HTML file, once its signature was found right."""
    signature.verify(path, signer)
    text = read_text(path)
    if path.suffix == ".html":
        _, opened, rest = text.partition(_OPEN)
        text = rest.partition("</script>")[0] if opened else ""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise AcceptError(f"{path}: signed, and holds no certificate: {error}") from error
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise AcceptError(f"{path}: signed, and no certificate; give {JSON_NAME} or {HTML_NAME}")
    if values.get("schema_version") != SCHEMA_VERSION:
        raise AcceptError(
            f"{path}: certificate version {values.get('schema_version')!r}, this reads "
            f"{SCHEMA_VERSION}; use the version that wrote it"
        )
    return values


def embed(html: str, text: str) -> str:
    """The page with the certificate's values in it, for programs; `<` cannot end the script."""
    data = text.replace("<", "\\u003c")
    return html.replace("</body>", f"{_OPEN}{data}</script></body>")
