"""What mkdocs calls at a build: adds the pages that are made from the code, checks and leads links.

Owns nothing of what those pages say. Named by mkdocs.yml.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

from infra.setup.docs import pages
from infra.setup.docs.pages import cli_page, drawings, feature_page, price_page

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
        for path in pages.outside(page.content_string, page.src_uri)
    }
    for path in sorted(wanted):
        # One that is not there stays unknown to mkdocs, which names page and link.
        if (ROOT / path).is_file():
            content = (ROOT / path).read_bytes()
            # Tables are excluded as pages; one that a page links to is wanted.
            copied = File.generated(
                config,
                pages.site_path(path),
                content=content,
                inclusion=InclusionLevel.INCLUDED,
            )
            files.append(copied)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Leads links out of docs/ to the copies."""
    return pages.inside(markdown, page.file.src_uri)
