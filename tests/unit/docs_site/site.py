"""What mkdocs calls at a build: adds the pages that are made from the code, checks and leads links.

Owns nothing of what those pages say. Named by mkdocs.yml.
"""

from __future__ import annotations

import ast
import csv
import posixpath
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

from cost.prices.book import PRICES_DIR, Price, read_price_file
from infra.cli.main import VERBS, app
from infra.render.stack_drawing import stack_svg
from stacks.load import load_stack, stack_names

ROOT = Path(__file__).resolve().parents[3]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the decisions, and pages that nobody listed, into the navigation by their names."""
    nav: list[Any] = list(config.nav or [])
    docs = ROOT / "docs"
    listed = {path for section in nav for path in _paths(section)}
    found = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - listed
    decisions = sorted(path for path in found if path.startswith("adr/"))
    # The index first, so that it opens with the tab.
    nav.append({"Decisions": sorted(decisions, key=lambda path: not path.endswith("README.md"))})
    if rest := sorted(found - set(decisions)):
        nav.append({"More": rest})
    config.nav = nav
    return config


def _paths(entry: Any) -> list[str]:
    """Every page below one entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [path for each in inner for path in _paths(each)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is made from the code, and every file of the checkout that a page links to."""
    made = {
        "reference/cli.md": cli_page(),
        "reference/prices.md": price_page(),
        "reference/features.md": feature_page(ROOT / "docs" / "features.tsv"),
        **drawings(),
    }
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    wanted = {
        path
        for page in files.documentation_pages()
        for path in outside(page.content_string, page.src_uri)
    }
    for path in sorted(wanted):
        # One that is not there stays unknown to mkdocs, which names page and link.
        if (ROOT / path).is_file():
            content = (ROOT / path).read_bytes()
            # Tables are excluded as pages; one that a page links to is wanted.
            copied = File.generated(
                config,
                site_path(path),
                content=content,
                inclusion=InclusionLevel.INCLUDED,
            )
            files.append(copied)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Leads links out of docs/ to the copies."""
    return inside(markdown, page.file.src_uri)


def cli_page() -> str:
    """Every verb with its usage, arguments, options and defaults, as Markdown."""
    root: Any = typer.main.get_command(app)
    context = typer.Context(root, info_name="soperator")
    lines = [
        "# Commands",
        "",
        "Made from the command itself. Exit codes: 0 ok, 1 refused, 2 wrong usage, 130 stopped.",
        "",
        "| command | does |",
        "|---|---|",
        *(f"| [{words}](#{_anchor(words)}) | {cell(verb.help)} |" for words, verb in VERBS.items()),
    ]
    for words in VERBS:
        command: Any = root
        for word in words.split():
            command = command.get_command(context, word)
        lines += _command(command, f"soperator {words}")
    return "\n".join(lines) + "\n"


def _anchor(words: str) -> str:
    """Where the site puts the heading of a command."""
    return f"soperator-{words}".replace(" ", "-")


def _command(command: Any, name: str) -> Iterator[str]:
    context = typer.Context(command, info_name=name)
    yield from ("", f"## {name}", "", _paragraphs(command.help))
    usage = " ".join(command.collect_usage_pieces(context))
    yield from ("", f"    {name} {usage}")
    rows = [_option_row(each, context) for each in command.params if each.name != "help"]
    if rows:
        yield from ("", "| argument or option | means |", "|---|---|", *rows)


def _option_row(parameter: Any, context: typer.Context) -> str:
    """The line of `--help`: names with what they take, meaning with its default."""
    words, means = parameter.get_help_record(context)
    code = words.strip().replace("|", "\\|")
    return f"| `{code}` | {cell(means)} |"


def _paragraphs(text: str | None) -> str:
    """Paragraphs of a docstring, each on one line."""
    blocks = (text or "").strip().split("\n\n")
    return "\n\n".join(" ".join(block.split()) for block in blocks)


def feature_page(table: Path) -> str:
    """Every feature of the seed documents with its state and what shows it, as Markdown."""
    with table.open(encoding="ascii", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    tests = marked_tests(table.parents[1] / "tests")
    lines = [
        "# Features",
        "",
        f"{counted(rows)} Made from `docs/features.tsv` and the markers of the tests.",
        "",
        "| id | feature | proof | missing | where | tests that notice its loss |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        where = " ".join(f"`{path}`" for path in row["where"].split())
        shown_by = " ".join(f"`{test}`" for test in tests.get(row["id"], []))
        note = f" {cell(row['note'])}" if row["note"] else ""
        feature = f"{cell(row['feature'])}{note}"
        proof = row["proof"] if row["state"] != "waived" else "waived"
        lines.append(
            f"| {row['id']} | {feature} | {proof} | {cell(row['missing'])} | {where} | {shown_by} |"
        )
    return "\n".join(lines) + "\n"


def counted(rows: Iterable[Mapping[str, str]]) -> str:
    """How many rows work, by what shows it, and how many do not wholly: one sentence."""
    proofs = Counter(row["proof"] for row in rows)
    return (
        f"Of {proofs.total()} features of the five seed documents {proofs['run']} are run as the "
        f"seed means them and {proofs['declared']} are values that a stack or recipe declares; "
        f"{proofs['part']} are there in part, {proofs['stand-in']} run on a stand-in, "
        f"{proofs['gpu']} want a GPU and {proofs['cloud']} the real cloud to be seen; "
        f"{proofs['-']} are waived."
    )


def marked_tests(folder: Path) -> dict[str, list[str]]:
    """Tests (path::name, below the parent of the folder) by the ids of their marker `feature`."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.feature(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            for mark in getattr(node, "decorator_list", []):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.feature":
                    name = f"{path.relative_to(folder.parent)}::{getattr(node, 'name', '')}"
                    for id_ in mark.args:
                        found[ast.literal_eval(id_)].append(name)
    return found


def price_page(folder: Path = PRICES_DIR) -> str:
    """Every book of the folder as Markdown, in US dollars without tax."""
    lines = [
        "# Price book",
        "",
        (
            "Every reading that is kept, US dollars without tax; the newest of a region is used. "
            "Made from `cost/prices/`; how layers win over each other is in [Prices](../prices.md)."
        ),
    ]
    for path in sorted(folder.glob("*.yaml")):
        book = read_price_file(path)
        lines += ["", f"## {book.name}", "", cell(book.caveat), ""]
        lines += ["| SKU | USD | per | region | date | source |", "|---|---|---|---|---|---|"]
        lines += [_price_row(price) for readings in book.readings.values() for price in readings]
    return "\n".join(lines) + "\n"


def _price_row(price: Price) -> str:
    return (
        f"| `{price.sku}` | {price.usd:f} | {price.unit} | {price.region or 'all'} | "
        f"{price.dated} | {cell(price.source)} |"
    )


def drawings() -> dict[str, str]:
    """Path in the site -> text of the page and of one SVG for each shipped stack."""
    with tempfile.TemporaryDirectory() as folder:
        # The stack files let in whoever has this key; no drawing shows it.
        key = Path(folder) / "id.pub"
        key.write_text(f"ssh-ed25519 {'A' * 68} docs\n", encoding="utf-8")
        specs = [
            load_stack(name, environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(key)})
            for name in stack_names()
        ]
    lines = [
        "# Drawings of the stacks",
        "",
        "Drawn from the stack files at each build; `soperator cluster draw -s NAME` draws yours.",
    ]
    files: dict[str, str] = {}
    for spec in specs:
        files[f"reference/{spec.name}.svg"] = stack_svg(spec)
        lines += ["", f"## {spec.name}", "", f"![Architecture of {spec.name}]({spec.name}.svg)"]
    return {"reference/drawings.md": "\n".join(lines) + "\n", **files}


def cell(text: object) -> str:
    """The text on one line, without what would end the cell or start a tag."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


FOLDER: Final = "source"
_LINK: Final = re.compile(r"(\]\()(?!https?://|mailto:|#)([^)#\s]+)((?:#[^)]*)?\))")


def outside(text: str, page: str) -> list[str]:
    """Paths from the checkout's root of the files that a page of docs/ links to outside of it."""
    paths = (_path(match[2], page) for match in _LINK.finditer(text))
    return [path for path in paths if path is not None]


def inside(text: str, page: str) -> str:
    """The page with those links led to the site's own copies."""

    def replace(match: re.Match[str]) -> str:
        path = _path(match[2], page)
        if path is None:
            return match[0]
        target = posixpath.relpath(site_path(path), posixpath.dirname(page) or ".")
        return f"{match[1]}{target}{match[3]}"

    return _LINK.sub(replace, text)


def site_path(path: str) -> str:
    """Where the site has a file of the checkout."""
    # A browser shows it as text, whatever it is; a Markdown page would be made a page of the site.
    return f"{FOLDER}/{path}.txt" if Path(path).suffix in ("", ".md", ".py") else f"{FOLDER}/{path}"


def _path(link: str, page: str) -> str | None:
    """Path from the checkout's root of what a link names outside of docs/, and of its tables."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    leaves = not path.startswith("docs/") or path.endswith(".tsv")
    return path if leaves else None
