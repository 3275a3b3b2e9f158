"""The certificate of one acceptance: its facts as JSON, its page with plots, both signed.

Format `soperator-certificate`, version 1. With it what a failure costs a month.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from cost.prices.book import HOURS_PER_MONTH
from cost.report.charts import Axis, Mark, Scale, Series, line_chart
from cost.report.layout import short
from cost.resources.estimate import Estimate
from infra.clients.ssh_key import fingerprint
from infra.reports.acceptance.run import STAGES, AcceptError, Check, Result
from infra.reports.page.loop import REHEARSAL
from infra.reports.page.quality import exact
from stacks.files import fill, read_bytes, read_text
from stacks.machines import nodeset_of

Points = Sequence[tuple[float, float]]


def bandwidth(rows: Sequence[Mapping[str, Any]]) -> str:
    """busbw in GB/s by message size, a line for each collective and scope; needs two sizes."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        where = row["nodes"][0] if row["scope"] == "node" else f"{len(row['nodes'])} nodes"
        by = "" if row["source"] == "torch" else f", {row['source']}"
        key = f"{row['op']}, {where}{by}"
        lines.setdefault(key, []).append((row["bytes"] / 1e6, float(row["busbw_gb_per_s"])))
    lines = {key: sorted(points) for key, points in lines.items() if len(points) > 1}
    return _plot("Bandwidth of collectives", lines, x="message, MB", y="busbw, GB/s")


def scaling(points: Sequence[Mapping[str, Any]]) -> str:
    """Tokens a second by ranks, with the line of the first point times the ranks."""
    found = sorted((float(each["ranks"]), float(each["tokens_per_s"])) for each in points)
    if len(found) < 2:
        return ""
    first_ranks, first_rate = found[0]
    ideal = [(ranks, first_rate / first_ranks * ranks) for ranks, _ in found]
    lines = {"measured": found, "ideal": ideal}
    return _plot("Scaling of training", lines, x="ranks", y="tokens/s")


def rounds(round_s: Sequence[float]) -> str:
    """Seconds of each round of the soak."""
    points = [(float(index + 1), seconds) for index, seconds in enumerate(round_s)]
    return _plot("Soak", {"time of a round": points}, x="round", y="seconds", log=False)


def compared(title: str, lines: Mapping[str, Points]) -> str:
    """Tokens a second by nodes of several runs."""
    drawn = {name: sorted(points) for name, points in lines.items() if len(points) > 1}
    return _plot(title, drawn, x="nodes", y="tokens/s")


def _plot(title: str, lines: Mapping[str, Points], *, x: str, y: str, log: bool = True) -> str:
    """One chart from zero up; empty where no line has two places."""
    drawn = {name: exact(points) for name, points in lines.items()}
    places = sorted({place for points in drawn.values() for place, _ in points})
    if len(places) < 2:
        return ""
    scale = Scale.LOG if log else Scale.LINEAR
    return line_chart(
        f"plot-{title.casefold().replace(' ', '-')}",
        title=title,
        description=f"{y} by {x}",
        x=Axis(label=x, scale=scale, text=short, ticks=tuple(places) if log else ()),
        y=Axis(label=y, scale=Scale.LINEAR, text=short, reach=Decimal(0)),
        series=[
            Series(
                name=name,
                points=points,
                style=style,
                dash=style // 6,
                marks=tuple(Mark(x=place, y=value) for place, value in points),
            )
            for style, (name, points) in enumerate(drawn.items())
        ],
    )


_FOLDER = Path(__file__).parent
_FIRST = ("FAIL", "NOT_RUN", "PASS")
"""What a reader looks for first."""
_TABLES = ("collectives", "wires", "storage", "compute")
"""Measurements that the page shows row by row."""
_FACTORS = "2(n-1)/n (all_reduce), (n-1)/n (all_gather, reduce_scatter) or 1 (send_recv)"
"""workloads/accept/collectives.py has them; nothing of it is imported here."""
_BEST: Final = {
    "collectives.values": (("up to ", "busbw_gb_per_s", "GB/s"),),
    "compute.values": (("up to ", "gemm_tflops", "TFLOP/s"),),
    "storage": (("write ", "write_gb_per_s", "GB/s"), ("read ", "read_gb_per_s", "GB/s")),
    "training.loss": (("up to ", "tokens_per_s", "tokens/s"),),
}
"""The figure of a stage that stands beside a check without a number of its own."""


def render(values: Mapping[str, Any]) -> str:
    """The page's HTML; equal input gives equal bytes."""
    filters = {
        "limit": limit_text,
        "measured": lambda check: measured_text(check, values["measurements"]),
        "ranks": ranks_text,
        "context": context_text,
        "number": number_text,
        "usd": usd_text,
    }
    measured = values["measurements"]
    drawn = (
        bandwidth(measured.get("collectives", [])),
        scaling(measured.get("training", {}).get("points", [])),
        rounds(measured.get("soak", {}).get("round_s", [])),
    )
    return fill(
        _FOLDER / "page.html.j2",
        filters,
        it=values,
        checks=sorted(values["checks"], key=lambda check: _FIRST.index(check["outcome"])),
        outcome=outcome_text(values),
        proof=proof_text(values),
        style=_style(),
        plots=[Markup(plot) for plot in drawn if plot],  # noqa: S704 (escaped in cost/report/charts.py)
        is_rehearsal=is_rehearsal(values),
        counts=_counts(values),
        factors=_FACTORS,
        points=measured.get("training", {}).get("points", []),
        **{name: measured.get(name, []) for name in _TABLES},
    )


def _style() -> Markup:
    """The style of the page: the report's with its own."""
    styles = (_FOLDER.parent / "page" / "page.css", _FOLDER / "page.css")
    return Markup("".join(path.read_text(encoding="utf-8") for path in styles))  # noqa: S704 (ours)


def _counts(values: Mapping[str, Any]) -> dict[str, int]:
    return {
        outcome: sum(check["outcome"] == outcome for check in values["checks"])
        for outcome in ("PASS", "FAIL", "NOT_RUN")
    }


def outcome_text(values: Mapping[str, Any]) -> str:
    """`PASS`, `PASS of readiness only`, or `PASS (CPU rehearsal)` where no GPU took part."""
    outcome = str(values["outcome"]).replace("_", " ")
    if set(values["stages"]) < set(STAGES):
        outcome += f" of {', '.join(values['stages'])} only"
    return f"{outcome} ({REHEARSAL})" if is_rehearsal(values) else outcome


def is_rehearsal(values: Mapping[str, Any]) -> bool:
    """Whether no GPU took part, so that passing certifies none."""
    return not any(node["gpus"] for node in values["nodes"])


def measured_text(check: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """The number of the check; a question without one is answered with yes or no, and its stage's
    best figure where it has one.
    """
    if check["measured"] is not None:
        return f"{number_text(check['measured'])} {check['unit']}".rstrip()
    answer = {"PASS": "yes", "FAIL": "no"}.get(check["outcome"], "-")
    rows = {**measured, "training": measured.get("training", {}).get("points", [])}
    stage = check["id"].partition(".")[0]
    found = [
        f"{name}{number_text(max(row[key] for row in of))} {unit}"
        for name, key, unit in _BEST.get("storage" if stage == "storage" else check["id"], ())
        if (of := [row for row in rows.get(stage, []) if _is_of(check, row)])
    ]
    return f"{answer}; {', '.join(found)}" if found and answer != "-" else answer


def _is_of(check: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a measurement is of the check's subject; only those of storage are of one place."""
    return "path" not in row or check["subject"].startswith(f"{row['path']} on ")


def limit_text(limit: Mapping[str, Any] | None) -> str:
    """A limit in words: at least 350."""
    if limit is None:
        return ""
    if limit["at_least"] is not None:
        return f"at least {limit['at_least']:g}"
    return f"at most {limit['at_most']:g}"


def number_text(value: float) -> str:
    """Four digits, and whole numbers with thousands from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def usd_text(value: str) -> str:
    """Dollars with thousands and cents."""
    return f"{Decimal(value):,.2f}"


def ranks_text(ranks: list[int]) -> str:
    """How many ranks, and which, as a range where they are one: `8 ranks (0-7)`."""
    which = ", ".join(map(str, ranks))
    if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        which = f"{ranks[0]}-{ranks[-1]}"
    return f"{len(ranks)} rank{'' if len(ranks) == 1 else 's'} ({which})"


def context_text(context: Mapping[str, Any]) -> str:
    """What a number depends on, in one line."""
    return ", ".join(
        f"{name} {value:,.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in context.items()
    )


SCHEMA: Final = "soperator-certificate"
SCHEMA_VERSION: Final = 1
JSON_NAME: Final = "certificate.json"
HTML_NAME: Final = "certificate.html"
_OPEN: Final = '<script type="application/json" id="certificate">'


def content(
    result: Result,
    *,
    stack: str,
    prices: Mapping[str, Decimal | None],
    price_note: str,
) -> dict[str, Any]:
    """The certificate as plain values; dollars are text with two decimals."""
    values = asdict(result)
    for check, plain in zip(result.checks, values["checks"], strict=True):
        usd = accepting_usd(check, prices)
        plain["usd_per_month"] = None if usd is None else f"{usd:.2f}"
    measurements = values.pop("measurements")
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "stack": stack,
        "made_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "measured_on": result.finished_at[:10],
        "outcome": result.outcome,
        **values,
        "hardware": {**result.hardware, "certifies": result.certifies},
        "prices": {
            "note": price_note,
            "node_usd_per_month": {
                name: None if usd is None else f"{usd:.2f}" for name, usd in prices.items()
            },
        },
        "measurements": measurements,
    }


def refuse_full(folder: Path) -> None:
    """Refuses a folder that holds a certificate already."""
    if (folder / JSON_NAME).exists():
        raise AcceptError(f"{folder}: holds a certificate; give another --output")


def write(values: Mapping[str, Any], folder: Path, key: Path) -> Path:
    """The page, once both files are written and signed; a folder that holds one is refused."""
    refuse_full(folder)
    text = json.dumps(values, indent=2, sort_keys=False) + "\n"
    texts = {HTML_NAME: embed(render(values), text), JSON_NAME: text}
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Whole and signed before the first has its name: what lies there is a certificate.
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as aside:
            for name, written in texts.items():
                (Path(aside) / name).write_text(written, encoding="utf-8")
                sign(Path(aside) / name, key)
            for name in texts:
                signature_of(Path(aside) / name).replace(signature_of(folder / name))
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
    return folder / HTML_NAME


def verify(path: Path, signer: str) -> dict[str, Any]:
    """The certificate in a JSON or HTML file, once its signature was found right.

    `signed_by` in it is the fingerprint of the signer's key.
    """
    signed_by, signed = verify_signature(path, signer)
    # What was read once: a second look could be at another file of that name.
    text = signed.decode(errors="replace")
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
    return {**values, "signed_by": signed_by}


def proof_text(values: Mapping[str, Any]) -> str:
    """Where the results of a certificate came from: `measured by job 7 of cluster SHA256:...`."""
    jobs: dict[str, list[str]] = {}
    for each in values.get("evidence", ()):
        if not each["attested"]:
            jobs.setdefault(each["cluster"], []).append(str(each["job_id"]))
    parts = [f"measured by job {', '.join(ids)} of cluster {of}" for of, ids in jobs.items()]
    hashes = [each["sha256"] for each in values.get("evidence", ()) if each["attested"]]
    if hashes:
        parts.append(f"given as a file, which proves no job of a cluster: {', '.join(hashes)}")
    return "; ".join(parts) or "made by a version that did not say what measured it"


def embed(html: str, text: str) -> str:
    """The page with the certificate's values in it, for programs; `<` cannot end the script."""
    data = text.replace("<", "\\u003c")
    return html.replace("</body>", f"{_OPEN}{data}</script></body>")


NAMESPACE: Final = "soperator-acceptance"
_SIGNER: Final = "soperator"
_KEY_LINE: Final = re.compile(r"(ssh-|ecdsa-|sk-)\S+ +\S+( +[^\r\n]*)?")


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


def verify_signature(path: Path, signer: str) -> tuple[str, bytes]:
    """The fingerprint of `signer`, a key line, and what its owner signed; refuses all else."""
    if not _KEY_LINE.fullmatch(signer):
        raise AcceptError(
            f"signer: {signer[:60]!r} is not one key; give a file of one line, `TYPE KEY COMMENT`, "
            "as in id_ed25519.pub"
        )
    signature = signature_of(path)
    for needed in (path, signature):
        if not needed.is_file():
            raise AcceptError(f"{needed}: no such file; a certificate and its .sig stay together")
    with tempfile.TemporaryDirectory(prefix="soperator-verify-") as folder:
        allowed = Path(folder) / "allowed_signers"
        allowed.write_text(f'{_SIGNER} namespaces="{NAMESPACE}" {signer}\n', encoding="utf-8")
        words = ("-f", str(allowed), "-I", _SIGNER, "-n", NAMESPACE, "-s", str(signature))
        signed = read_bytes(path)
        done = _run("verify", *words, stdin=signed)
    if done.returncode:
        raise AcceptError(
            f"{path}: not what was signed, or not by this key ({_last(done)}); get the certificate "
            "again, or name its signer with --signer"
        )
    return fingerprint(signer), signed


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


def node_prices(rates: Estimate, nodes: tuple[str, ...]) -> dict[str, Decimal | None]:
    """US dollars a month of each node by its name."""
    found: dict[str, Decimal | None] = {}
    for node in nodes:
        nodeset = nodeset_of(rates.spec, node)
        rate = rates.node_usd_per_hour.get(nodeset)
        disk = rates.disk_usd_per_hour.get(nodeset, Decimal(0))
        found[node] = None if rate is None else (rate + disk) * HOURS_PER_MONTH
    return found


def accepting_usd(check: Check, prices: Mapping[str, Decimal | None]) -> Decimal | None:
    """US dollars a month; None where nothing failed, no node is named, or a price is not known."""
    if check.outcome != "FAIL" or not check.nodes:
        return None
    known = [price for node in check.nodes if (price := prices.get(node)) is not None]
    if len(known) < len(check.nodes):
        return None
    return (sum(known, Decimal(0)) * lost_share(check)).quantize(Decimal("0.01"))


def lost_share(check: Check) -> Decimal:
    """The share of its nodes' price that a failed check says is lost."""
    if check.limit is None or check.measured is None:
        return Decimal(1)
    measured = Decimal(str(check.measured))
    least = check.limit.get("at_least")
    if least is not None:
        share = 1 - measured / Decimal(str(least))
    elif check.unit == "percent":
        share = measured / (100 + measured)
    else:
        return Decimal(1)
    return min(max(share, Decimal(0)), Decimal(1))


HEADERS: Final = ("outcome", "check", "of", "measured", "limit", "$ a month")


def rows(values: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each check; what failed or is missing comes with its reason below the table."""
    found: list[tuple[str, ...]] = []
    for check in values["checks"]:
        usd = check["usd_per_month"]
        cost = usd_text(usd) if usd else "not known" if check["outcome"] == "FAIL" else ""
        found.append(
            (
                check["outcome"].replace("_", " "),
                check["id"],
                check["subject"],
                measured_text(check, values["measurements"]),
                limit_text(check["limit"]),
                cost,
            )
        )
    return found


def summary(values: Mapping[str, Any]) -> list[str]:
    """Reasons, nodes with their ranks, memory, what it certifies, and the outcome as last line."""
    lines = [
        f"{check['id']} of {check['subject']}: {check['reason']}"
        for check in values["checks"]
        if check["outcome"] != "PASS" and check["reason"]
    ]
    for node in values["nodes"]:
        memory = node["gpu_memory_gib"]
        size = "" if memory is None else f", {node['gpus']} x {memory:.2f} GiB"
        lines.append(
            f"{node['name']} ({node['role']}): {ranks_text(node['ranks'])}, {node['device']}{size}"
        )
    total = values["hardware"].get("total_gpu_memory_gib")
    if total:
        lines.append(f"GPU memory in total: {total:,.1f} GiB")
    lines.append(f"certifies {values['hardware']['certifies']}")
    counts = _counts(values)
    lines.append(
        f"{outcome_text(values)}: {counts['PASS']} passed, {counts['FAIL']} failed, "
        f"{counts['NOT_RUN']} not run; {values['stack']}, measured on {values['measured_on']}"
    )
    return lines
