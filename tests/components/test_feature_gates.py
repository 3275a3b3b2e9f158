"""Values of charts that no renderer of ours checks, read as the chart's own program reads them."""

from __future__ import annotations

import re

import pytest

from infra.render.charts import chart_values
from stacks.load import load_stack


@pytest.mark.usefixtures("public_key_file")
def test_every_gate_of_kruise_parses_as_kubernetes_parses_it() -> None:
    """`\\,` is for `helm --set`: in a value the backslash stays, and the manager does not start."""
    gates = chart_values(load_stack("h100-prod"), "kruise")["featureGates"].split(",")
    assert len(gates) == 6
    assert [gate for gate in gates if not re.fullmatch(r"[A-Za-z]+=(true|false)", gate)] == []
