"""Values of charts that no renderer of ours checks, read as the chart's own program reads them."""

from __future__ import annotations

import re

from infra.render.values.operators import kruise_values


def test_every_gate_of_kruise_parses_as_kubernetes_parses_it() -> None:
    """`\\,` is for `helm --set`: in a value the backslash stays, and the manager does not start."""
    gates = kruise_values()["featureGates"].split(",")
    assert len(gates) == 6
    assert [gate for gate in gates if not re.fullmatch(r"[A-Za-z]+=(true|false)", gate)] == []
