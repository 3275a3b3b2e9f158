"""What others named reaches no terminal as a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.report.layout import Format, Report, Table, render_report
from infra.cli import output
from infra.cli.main import app
from stacks.errors import visible
from tests.unit.runs.folders import write_run

ERASE = "\x1b[2J\x1b]0;title\x07\r\n\x9b\u202e"


def test_what_is_printable_stays_as_it_is() -> None:
    assert visible("Qwen3-14B \u00e9\u6f22 |") == "Qwen3-14B \u00e9\u6f22 |"
    assert visible(ERASE).isprintable()
    assert visible("a\x1b[2J\u202e\nb") == "a\\x1b[2J\\u202e\\x0ab"


def test_a_table_and_a_note_keep_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("NAME",), [(ERASE,), ("plain",)])
    output.note(f"first {ERASE[:4]}\nsecond")
    printed, noted = capsys.readouterr()
    assert [len(printed.splitlines()), len(noted.splitlines())] == [3, 2]
    assert all(line.isprintable() for line in [*printed.split("\n"), *noted.split("\n")])


@pytest.mark.parametrize("format", [Format.TABLE, Format.MARKDOWN])
def test_a_document_holds_no_command_of_a_terminal(format: Format) -> None:
    table = Table(title="t", headings=("A", "B"), rows=((ERASE, ERASE),), num_text_columns=2)
    text = render_report(Report(heading=None, tables=(table,), notes=(f"note {ERASE}",)), format)
    assert all(line.isprintable() for line in text.split("\n"))


def test_a_run_of_others_and_a_refusal_show_their_names_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path
) -> None:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    write_run(tmp_path, "2", model=ERASE)
    listed = CliRunner().invoke(app, ["runs", "list"])
    assert "\\x1b[2J" in listed.stdout
    refused = CliRunner().invoke(app, ["runs", "diff", "2", "\x1b[2J3"])
    assert refused.exit_code == 2
    assert not [each for each in (listed.output, refused.output) if "\x1b" in each]
