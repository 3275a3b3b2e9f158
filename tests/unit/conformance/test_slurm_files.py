"""Two files of Slurm are compared by what they say, and only what no row speaks of is news."""

from __future__ import annotations

import pytest

from tests.conformance.slurm_files import Difference, Known, differences, expanded, known, unlisted

REAL = """
# a comment
SlurmdTimeout=180
GresTypes=gpu
SchedulerParameters=b,a   # another
NodeName=w-0 State=CLOUD CPUs=4 Port=6818
NodeName=w-1 State=CLOUD CPUs=4 Port=6818
NodeSet=w Nodes=w-[0-1]
PartitionName=main Nodes=w Default=YES
include more.conf
"""
LOCAL = """
gresTypes=gpu
SlurmdTimeout=30
SchedulerParameters=a,b
NodeName=w-0 CPUs=4 State=UNKNOWN Port=17820
NodeName=w-1 CPUs=4 State=UNKNOWN Port=17821
PartitionName=main Nodes=w-0,w-1 Default=YES
Custom=1
"""


def found(real: str = REAL, local: str | None = LOCAL) -> dict[str, tuple[str, str]]:
    files = {"slurm.conf": real, "more.conf": "Custom=1\n"}
    rows = differences("slurm.conf", expanded(files, "slurm.conf"), local)
    return {each.key: (each.real, each.local) for each in rows}


def test_order_case_comments_includes_and_short_forms_are_no_difference():
    of_nodes = {f"nodename.w-{i}.{word}" for i in (0, 1) for word in ("state", "port")}
    assert set(found()) == {"slurmdtimeout", *of_nodes}


def test_both_sides_are_told():
    assert found()["slurmdtimeout"] == ("180", "30")
    assert found()["nodename.w-1.port"] == ("6818", "17821")


@pytest.mark.parametrize("line", ["NodeName={} RealMemory={}", "PartitionName={} MaxTime={}"])
def test_values_that_two_nodes_or_partitions_exchange_are_differences(line):
    here = "\n".join([line.format("a", 1), line.format("b", 2)])
    there = "\n".join([line.format("a", 2), line.format("b", 1)])
    rows = [(one.real, one.local) for one in differences("slurm.conf", here, there)]
    assert rows == [("1", "2"), ("2", "1")]


def test_a_node_that_one_side_lacks_is_named():
    (row,) = differences("slurm.conf", "NodeName=w-[0-1]", "NodeName=w-0")
    assert (row.key, row.real, row.local) == ("nodename.w-1", "declared", "-")


def test_of_two_lists_the_words_are_told_that_the_other_lacks():
    (row,) = differences("slurm.conf", "SlurmctldParameters=a=1,b", "SlurmctldParameters=b,c")
    assert (row.real, row.local) == ("a=1", "c")


def test_a_later_line_wins_as_it_does_in_slurm():
    again = REAL + "SlurmdTimeout=30\n"
    assert "slurmdtimeout" not in found(again)


def test_a_file_that_one_side_lacks_is_one_difference():
    assert found(local=None) == {"the file": ("present", "-")}


def test_a_row_speaks_of_its_own_values_only():
    row = Known(file="slurm.conf", key="SlurmdTimeout", real="180", local="3?", effect="none")
    same = Difference(file="slurm.conf", key="slurmdtimeout", real="180", local="30")
    other = Difference(file="slurm.conf", key="slurmdtimeout", real="300", local="30")
    assert unlisted([same, other], [row]) == [other]


def test_no_row_takes_any_value_of_the_local_stack():
    """Such a row would hide whatever a change of ours writes there."""
    ports = {"accountingstorageport", "slurmctldport"}
    assert {row.key for row in known() if row.local == "*"} == ports
    assert [row.key for row in known() if row.real == "*"] == []


def test_every_row_says_what_it_means_for_jobs():
    rows = known()
    assert rows
    assert all(row.effect.strip() for row in rows)
    assert len({(row.file, row.key, row.real, row.local) for row in rows}) == len(rows)
