"""The pages about keys, rules and the ways here are those of the code, and leave nothing out."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from stacks.rules import RULES
from tests.unit.stacks.reference import DOCS, pages, read_table, stack_keys

ROOT = DOCS.parent
SHARED = ROOT.parent / "shared"
ABSENT_KEY = re.compile(r"no key `([a-z_]+)`")
FILE = re.compile(
    r"(?<![\w/.-])(?:[\w./<>\[\]-]*/)?([\w<>\[\]-]*\."
    r"(?:py|sh|sbatch|ya?ml|json|tf|tfvars(?:\.example)?|md|txt|out|bin|log|err|toml|envrc))\b"
)
FOLDER = re.compile(r"(?<![\w.])/(?:mnt|home|opt|tmp|app)\b[\w/.<>-]*")
PAIRS = ("terraform", "docker", "kubectl", "scontrol", "pip")
"""Programs whose first word alone does not say what is done."""
SINGLE = frozenset(
    {
        "cat", "cd", "chmod", "curl", "export", "ibstat", "nvidia-smi", "ping", "python",
        "python3", "sbatch", "scancel", "scp", "sinfo", "source", "squeue", "srun", "ssh",
        "ssh-keygen", "tail", "torchrun", "watch", "wget",
    }
)  # fmt: skip


@pytest.mark.feature("S001-12", "S002-22")
@pytest.mark.parametrize("name", pages(DOCS))
def test_every_made_page_is_current(name: str):
    """Run `python -m tests.unit.stacks.reference` and look at the difference."""
    assert (DOCS / name).read_text(encoding="utf-8") == pages(DOCS)[name]


@pytest.mark.feature("S001-12")
def test_every_key_says_what_it_means():
    """A line under the field, or the docstring of its dataclass."""
    assert [key.path for key in stack_keys() if not key.says] == []


def test_every_rule_that_covers_a_condition_of_the_recipe_exists():
    table = read_table(DOCS / "recipe-conditions.tsv")
    assert len(table.rows) >= 80
    for _, condition, rules, why in table.rows:
        if rules == "-":
            assert why, condition
        else:
            assert set(rules.split()) - set(RULES) == set(), condition


def test_a_condition_without_a_rule_is_about_a_key_that_does_not_exist():
    """A key that comes later takes its condition's rule along, or this line is untrue."""
    segments = {part.removesuffix("[]") for key in stack_keys() for part in key.path.split(".")}
    table = read_table(DOCS / "recipe-conditions.tsv")
    named = {name for why in table.column("why") for name in ABSENT_KEY.findall(why)}
    assert named & segments == set()


@pytest.mark.feature("S000-64")
def test_every_variable_of_the_recipe_has_a_key_that_exists_or_a_reason():
    known = {key.path for key in stack_keys()}
    table = read_table(DOCS / "recipe-variables.tsv")
    assert len(set(table.column("variable"))) == len(table.rows)
    # The recipe is not here to be asked: a line that goes takes its variable off the page, too.
    assert Counter(table.column("era")) == {"F": 80, "N": 34, "B": 17}
    for _, variable, keys, why in table.rows:
        assert why if keys == "-" else set(keys.split()) <= known, variable


OTHER_WORDS = {
    *("nccl_benchmark_enable", "nccl_benchmark_schedule", "nccl_benchmark_min_threshold"),
    *("telemetry_enabled", "dcgm_exporter_enabled", "sizing_tier_override"),
}
"""Variables whose key has none of their words: what it does is called otherwise here."""
PARTS = {
    "filestore_jail_submounts": "storage.submounts[]",
    **{f"filestore_{name}": f"storage.{name}" for name in ("controller_spool", "jail")},
    "filestore_accounting": "storage.accounting",
    "slurm_nodeset_workers": "nodes.workers[]",
    **{f"slurm_nodeset_{name}": f"nodes.{name}" for name in ("system", "controller", "login")},
    **{f"slurm_nodeset_{name}": f"nodes.{name}" for name in ("accounting", "nfs")},
}
"""The recipe's own parts of an installation, and the section that is the same part here."""


def words_of(names: str) -> set[str]:
    """Words of variables or keys, without the plural."""
    return {word.rstrip("s") for word in re.findall(r"[a-z0-9]+", names.replace("_", " "))}


@pytest.mark.feature("S000-64")
def test_a_variable_of_the_recipe_leads_to_the_key_of_the_same_thing():
    rows = read_table(DOCS / "recipe-variables.tsv").rows
    found = {variable: keys for _, variable, keys, _ in rows if keys != "-"}
    for variable, keys in found.items():
        shared = words_of(variable) & words_of(keys)
        assert bool(shared) != (variable in OTHER_WORDS), variable
        part = PARTS.get(variable, "")
        assert all(f"{key}.".startswith(part and f"{part}.") for key in keys.split()), variable
    assert PARTS.keys() <= found.keys()


def recipe_variables() -> set[str]:
    """Names in the first column of the tables of variables, of our notes about the recipe."""
    notes = SHARED / "reference" / "terraform-recipe.md"
    if not notes.is_file():
        pytest.skip("notes about the Terraform recipe, which the project does not ship")
    section = notes.read_text(encoding="utf-8").split("### 2.1")[1].split("Preconditions run")[0]
    cells = re.findall(r"^\| ([a-z][^|]*) \|", section, re.MULTILINE)
    plain = [re.sub(r"\(.*?\)|variable", "", cell) for cell in cells]
    return {name for cell in plain for name in re.findall(r"[a-z][a-z0-9_]{2,}", cell)}


def test_no_variable_of_the_recipe_is_left_out():
    listed = set(read_table(DOCS / "recipe-variables.tsv").column("variable"))
    assert recipe_variables() - listed == set()


def test_no_resource_of_the_recipe_is_left_out():
    notes = SHARED / "reference" / "terraform-recipe.md"
    if not notes.is_file():
        pytest.skip("notes about the Terraform recipe, which the project does not ship")
    section = notes.read_text(encoding="utf-8").split("## 1. ")[1].split("## 2. ")[0]
    named = set(re.findall(r"nebius_[a-z0-9]+_v1[a-z0-9]*_[a-z0-9_]+", section))
    assert len(named) > 12
    cells = read_table(DOCS / "recipe-resources.tsv").column("resource")
    listed = {name for cell in cells for name in re.findall(r"nebius_\w+", cell)}
    assert named - listed == set()


def named_in(text: str) -> set[str]:
    """Files, folders and commands that a seed's text names."""
    found = {match.split("/")[-1] for match in FILE.findall(text)}
    found |= {match.rstrip("/.") for match in FOLDER.findall(text)}
    for line in text.splitlines():
        words = line.strip().lstrip("$ ").split()
        if words and words[0] in SINGLE:
            found.add(words[0])
        elif len(words) > 1 and words[0] in PAIRS and re.fullmatch(r"[a-z]+", words[1]):
            found.add(" ".join(words[:2]))
    return found


def test_a_command_a_file_and_a_folder_are_found_in_a_text():
    text = "  $ terraform plan\nsee scripts/run.sh\n  1T |-/mnt/data\nterraform is a tool"
    assert named_in(text) == {"terraform plan", "terraform is", "run.sh", "/mnt/data"}


@pytest.mark.parametrize("seed", ["S000", "S001", "S002", "S003", "S004"])
def test_no_command_file_or_folder_of_a_seed_is_left_out(seed: str):
    found = sorted((SHARED / "seeds").glob(f"{seed[1:]}_*.txt"))
    if not found:
        pytest.skip("texts of the seeds, which the project does not ship")
    table = read_table(DOCS / "seed-items.tsv")
    listed = {item for owner, _, item, _ in table.rows if owner == seed}
    assert named_in(found[0].read_text(encoding="utf-8")) - listed == set()


def test_every_path_that_stands_for_a_thing_of_the_seeds_exists():
    ours = "\n".join(read_table(DOCS / "seed-items.tsv").column("ours"))
    paths = re.findall(r"`((?:cost|docs|infra|stacks|workloads|\.github)/[\w./-]+)`", ours)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_table_with_a_short_row_is_refused(tmp_path: Path):
    path = tmp_path / "t.tsv"
    path.write_text("a\tb\n1\n")
    with pytest.raises(ValueError, match=r"t.tsv:2: 1 cells; give 2: a, b"):
        read_table(path)
