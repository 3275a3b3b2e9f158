"""The loader refuses what it does not understand, names the path, and says it all at once."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.files import parse_yaml
from stacks.load import STACKS_DIR, StackError, load_config, load_stack, stack_names
from stacks.spec.nodes import Billing
from stacks.spec.slurm import RECIPE_ENDINGS
from stacks.spec.storage import FilesystemType
from tests import SHIPPED
from tests.conftest import PUBLIC_KEY
from tests.unit.stacks.conftest import Change, changed, load, namespaced


def problems_of(config: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(StackError, match="demo") as caught:
        load(config)
    return caught.value.problems


def test_the_four_stacks_are_shipped():
    assert set(SHIPPED) <= set(stack_names())


@pytest.mark.feature("S002-22")
@pytest.mark.parametrize("name", SHIPPED)
def test_a_stack_file_and_the_configuration_of_the_engine_load_the_same(
    name: str, public_key_file: Path
):
    """The engine hands mappings and lists over as JSON text, and texts as they are."""
    document = yaml.safe_load((STACKS_DIR / f"Pulumi.{name}.yaml").read_text())["config"]
    from_engine = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in document.items()
    }
    assert load_config(from_engine, name) == load_stack(name)


@pytest.mark.feature("S002-22")
def test_nodes_sets_both_bounds(config: dict[str, Any]):
    worker = load(config).nodes.workers[0]
    assert (worker.min_nodes, worker.max_nodes) == (2, 2)


def test_defaults_fill_what_is_not_written(config: dict[str, Any]):
    spec = load(config)
    assert spec.storage.jail.type is FilesystemType.NETWORK_SSD
    assert spec.nodes.system.billing is Billing.ON_DEMAND
    assert spec.storage.config_bucket_gib is None


def test_the_mount_points_of_a_loaded_stack_cannot_be_changed(config: dict[str, Any]):
    places: Any = load(config).storage.places
    with pytest.raises(TypeError, match="assignment"):
        places["data"] = "/elsewhere"


def test_a_misspelt_key_is_refused_with_the_nearest_name(config: dict[str, Any]):
    worker = config["nodes"]["workers"][0]
    worker["platfrom"] = worker.pop("platform")
    assert problems_of(config) == (
        "demo.nodes.workers[0].platfrom: unknown key; did you mean 'platform'?",
        "demo.nodes.workers[0].platform: missing; give text",
    )


def test_a_misspelt_nodes_shorthand_is_refused_with_the_nearest_name(config: dict[str, Any]):
    worker = config["nodes"]["workers"][0]
    worker["node"] = worker.pop("nodes")
    assert "demo.nodes.workers[0].node: unknown key; did you mean 'nodes'?" in problems_of(config)


def test_a_misspelt_top_level_key_is_refused(config: dict[str, Any]):
    config["storrage"] = config.pop("storage")
    assert problems_of(config)[0] == "demo.storrage: unknown key; did you mean 'storage'?"


def test_every_problem_is_reported_at_once(config: dict[str, Any]):
    config["storage"]["jail"]["size_gib"] = 0
    config["cluster"]["kubernetes_version"] = Decimal("1.33")
    config["login"]["service"] = "NodePrt"
    config["jobs"][1]["nodes"] = "two"
    del config["chat"]["model"]
    assert len(problems_of(config)) == 5


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda c: c["storage"]["jail"].update(size_gib=0),
            "demo.storage.jail.size_gib: expected a whole number of 1 or more, got 0",
        ),
        (
            lambda c: c["storage"]["jail"].update(size_gib="256"),
            "demo.storage.jail.size_gib: expected a whole number, got text '256'",
        ),
        (
            lambda c: c["storage"]["jail"].update(size_gib=True),
            "demo.storage.jail.size_gib: expected a whole number, got true",
        ),
        (
            lambda c: c["nodes"]["workers"][0].update(nodes=0),
            "demo.nodes.workers[0].nodes: expected a whole number of 1 or more, got 0",
        ),
        (
            lambda c: c["nodes"]["workers"][0].update(min_nodes=1),
            "demo.nodes.workers[0].nodes: give either nodes or min_nodes and max_nodes, not both",
        ),
        (
            lambda c: c["cluster"].update(kubernetes_version=Decimal("1.33")),
            "demo.cluster.kubernetes_version: expected text, got number 1.33; put it in quotes",
        ),
        (
            lambda c: c["storage"]["jail"].update(type="network-ssd-io-m4"),
            (
                "demo.storage.jail.type: expected one of network-ssd, network-hdd, weka, "
                "got text 'network-ssd-io-m4'; did you mean 'network-ssd'?"
            ),
        ),
        (
            lambda c: c["slurm"].update(accounting="yes"),
            "demo.slurm.accounting: expected true or false, got text 'yes'",
        ),
        (
            lambda c: c.update(jobs={"name": "x"}),
            "demo.jobs: expected a list, got a mapping",
        ),
        (
            lambda c: c.update(cluster="newest"),
            (
                "demo.cluster: expected a mapping of kubernetes_version, etcd_size, "
                "audit_logs, public_endpoint, allowed_cidrs, os, gpu_drivers, drivers_preset, "
                "soperator_version, slurm_cluster_name, namespace, got text 'newest'"
            ),
        ),
        (
            lambda c: c["chat"].update(
                speeds=[{"scenario": "s", "output_tokens_per_s": 0, "source": "x"}]
            ),
            "demo.chat.speeds[0].output_tokens_per_s: expected a number over 0, got number 0",
        ),
        (
            lambda c: c["login"].update(sshd_config_map="login-sshd"),
            (
                "demo.login.sshd_config_map: gone, as Soperator's chart takes no sshd "
                "configuration for login nodes and the key changed nothing; remove it (that of "
                "workers is nodes.workers[].sshd_config_map)"
            ),
        ),
        (
            lambda c: c["chat"].update(cached_share="\u0660.\u0661"),
            "demo.chat.cached_share: expected a number, got text '\u0660.\u0661'",
        ),
        (
            lambda c: c["chat"].update(max_answer_s="1_0"),
            "demo.chat.max_answer_s: expected a number, got text '1_0'",
        ),
        (
            lambda c: c.update(prices=""),
            "demo.prices: expected text that is not blank, got text ''",
        ),
        (
            lambda c: c.update(name="other"),
            "demo.name: unknown key; the file name is the stack's name",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(change: Change, problem: str):
    with pytest.raises(StackError, match="demo") as caught:
        changed(change)
    assert caught.value.problems == (problem,)


def test_a_minimum_of_no_workers_is_allowed(config: dict[str, Any]):
    worker = config["nodes"]["workers"][0]
    del worker["nodes"]
    worker.update(min_nodes=0, max_nodes=4)
    assert load(config).nodes.workers[0].min_nodes == 0


def test_a_speed_is_exact(config: dict[str, Any]):
    config["chat"]["speeds"] = [{"scenario": "s", "output_tokens_per_s": 3.8, "source": "x"}]
    assert load(config).chat.speeds[0].output_tokens_per_s == Decimal("3.8")


def test_keys_of_other_programs_are_ignored(config: dict[str, Any]):
    others = {f"{name}:policy": {"a": "b"} for name in ("nebius", "pulumi", "soperator", "aws")}
    mapping = {**namespaced(config), "kubernetes:context": "x", **others}
    assert load_config(mapping, "demo", environ={}) == load(config)


@pytest.mark.feature("S002-22")
def test_a_key_without_its_project_is_refused(config: dict[str, Any]):
    with pytest.raises(StackError, match=r"demo\.prices: unknown key; write 'soperator-stack"):
        load_config({**namespaced(config), "prices": "x"}, "demo", environ={})


@pytest.mark.parametrize(
    "slip",
    [
        "soperator_stack",
        "soperator-stak",
        "soperator-stacks",
        "Soperator-Stack",
        " soperator-stack",
    ],
)
def test_a_namespace_that_is_nearly_ours_is_refused(slip: str, config: dict[str, Any]) -> None:
    """A budget or policy under it would have no effect, and nobody would say so."""
    values = {**namespaced(config), f"{slip}:policy": {"max_usd_per_month": 1}}
    with pytest.raises(StackError) as caught:
        load_config(values, "demo")
    message = f"unknown namespace '{slip}'; write 'soperator-stack:policy'"
    assert caught.value.problems == (f"demo.{slip}:policy: {message}",)


def test_the_keys_that_pulumi_writes_beside_the_configuration_are_ignored(
    tmp_path: Path, config: dict[str, Any]
):
    document = {
        "encryptionsalt": "v1:abc",
        "secretsprovider": "passphrase",
        "config": namespaced(config),
    }
    (tmp_path / "Pulumi.demo.yaml").write_text(yaml.safe_dump(document))
    assert load_stack("demo", tmp_path, environ={}) == load(config)


def test_a_stack_that_does_not_exist_is_answered_with_those_that_do():
    with pytest.raises(StackError, match=r"did you mean 'l40s-dev'.*h100-prod, h200-elastic"):
        load_stack("l40s")


def test_text_that_is_not_yaml_names_the_file(tmp_path: Path):
    (tmp_path / "Pulumi.demo.yaml").write_text("config: [")
    with pytest.raises(StackError, match=r"Pulumi.demo.yaml is not valid YAML"):
        load_stack("demo", tmp_path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000], ids=["lists", "mappings", "dashes"]
)
def test_a_nesting_that_would_crash_the_parser_is_refused_in_one_line(tmp_path: Path, text: str):
    """libyaml composes by recursion in C: without the refusal this process would end here."""
    (tmp_path / "Pulumi.deep.yaml").write_text(text)
    with pytest.raises(StackError) as refused:
        load_stack("deep", tmp_path)
    (line,) = refused.value.problems
    assert line.endswith("is not valid YAML: nested more than 100 levels deep")


def test_a_text_of_many_brackets_that_is_not_deep_is_read():
    assert parse_yaml("[" + "[], " * 500 + "]") == [[]] * 500
    assert parse_yaml("a: '" + "[" * 1000 + "'") == {"a": "[" * 1000}
    assert parse_yaml("[" * 100 + "]" * 100) is not None


def test_a_file_of_megabytes_is_refused_before_it_is_parsed(tmp_path: Path):
    (tmp_path / "Pulumi.long.yaml").write_text("#" * (4 << 20) + "\n")
    with pytest.raises(StackError, match=r"4194305 characters; at most 4194304 are read"):
        load_stack("long", tmp_path)


def test_json_in_a_value_that_is_nested_too_deep_is_refused_with_its_key(config: dict[str, Any]):
    config["nodes"] = "[" * 100_000
    with pytest.raises(StackError, match=r"\.nodes: JSON that is nested too deep"):
        load(config)


def test_a_file_without_configuration_says_what_is_missing(tmp_path: Path):
    (tmp_path / "Pulumi.demo.yaml").write_text("encryptionsalt: v1:abc\n")
    with pytest.raises(StackError, match=r"has no 'config:' mapping"):
        load_stack("demo", tmp_path)


def test_a_key_that_is_written_twice_is_refused(tmp_path: Path):
    """Plain YAML readers keep the last one silently; half an edit would be lost."""
    (tmp_path / "Pulumi.demo.yaml").write_text("config:\n  a: 1\n  a: 2\n")
    with pytest.raises(StackError, match="key 'a' is written twice"):
        load_stack("demo", tmp_path)


def test_an_unquoted_time_limit_stays_text(tmp_path: Path, config: dict[str, Any]):
    """YAML 1.1 reads 00:20:00 as the number 1200; the engine's reader does not."""
    config["jobs"][0]["time_limit"] = "00:20:00"
    text = yaml.safe_dump({"config": namespaced(config)}).replace("'00:20:00'", "00:20:00")
    assert "time_limit: 00:20:00" in text
    (tmp_path / "Pulumi.demo.yaml").write_text(text)
    assert load_stack("demo", tmp_path, environ={}).jobs[0].time_limit == "00:20:00"


@pytest.mark.feature("S002-24", "S003-65")
def test_a_key_file_is_read_and_each_key_kept_once(config: dict[str, Any], tmp_path: Path):
    path = tmp_path / "keys.pub"
    path.write_text(f"# mine\n\n{PUBLIC_KEY}\nssh-rsa AAAA other\n")
    config["login"]["ssh_public_keys"] = [
        "file:$KEYS/keys.pub",
        PUBLIC_KEY,
        "ssh-rsa BBBB third",
    ]
    spec = load_config(namespaced(config), "demo", environ={"KEYS": str(tmp_path)})
    assert spec.login.ssh_public_keys == (
        PUBLIC_KEY,
        "ssh-rsa AAAA other",
        "ssh-rsa BBBB third",
    )


def test_the_key_file_falls_back_to_the_usual_one(config: dict[str, Any], tmp_path: Path):
    path = tmp_path / ".ssh" / "id_ed25519.pub"
    path.parent.mkdir()
    path.write_text(PUBLIC_KEY)
    config["login"]["ssh_public_keys"] = ["file:${SOPERATOR_SSH_PUBLIC_KEY_FILE}"]
    spec = load_config(namespaced(config), "demo", environ={"HOME": str(tmp_path)})
    assert spec.login.ssh_public_keys == (PUBLIC_KEY,)


def test_a_missing_key_file_says_how_to_make_one(config: dict[str, Any], tmp_path: Path):
    config["login"]["ssh_public_keys"] = [f"file:{tmp_path}/none.pub"]
    (problem,) = problems_of(config)
    assert problem == (
        f"demo.login.ssh_public_keys[0]: cannot read the SSH public key {tmp_path}/none.pub "
        "(no such file or directory); make one with 'ssh-keygen -t ed25519' or set "
        "SOPERATOR_SSH_PUBLIC_KEY_FILE"
    )


def test_a_variable_that_is_not_set_is_named(config: dict[str, Any]):
    config["login"]["ssh_public_keys"] = ["file:$NOWHERE/a.pub"]
    assert problems_of(config) == (
        (
            "demo.login.ssh_public_keys[0]: '$NOWHERE/a.pub': $NOWHERE is not set; "
            "export it or give a path"
        ),
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_every_recipe_that_a_stack_names_is_shipped(name: str, public_key_file: Path):
    recipes = STACKS_DIR.parent / "workloads" / "recipes"
    shipped = {path.stem for path in recipes.iterdir() if path.suffix in RECIPE_ENDINGS}
    assert {job.recipe for job in load_stack(name).jobs} <= shipped


@pytest.mark.parametrize("key", [1, True, None, 1.5])
def test_a_key_that_is_no_text_is_refused_with_the_rest(config: dict[str, Any], key: object):
    document: dict[Any, Any] = {**namespaced(config), key: 2, "soperator-stack:jbos": []}
    with pytest.raises(StackError) as caught:
        load_config(document, "demo")
    assert caught.value.problems[:2] == (
        f"demo.{key}: a key is text; write 'soperator-stack:<key>'",
        "demo.jbos: unknown key; did you mean 'jobs'?",
    )


@pytest.mark.parametrize(
    "text",
    [
        "keep_daily: 09",
        "keep_daily: 010",
        f"keep_daily: {'9' * 5000}",
        "keep_daily: 1e99999999999999999999",
    ],
)
def test_a_number_that_yaml_cannot_hold_is_refused_with_its_line(tmp_path: Path, text: str):
    """A zero before it is octal for some readers: 010 was 8 without a word."""
    (tmp_path / "Pulumi.own.yaml").write_text(f"config:\n  soperator:backup:\n    {text}\n")
    with pytest.raises(StackError, match=r"Pulumi\.own\.yaml.*line 3"):
        load_stack("own", tmp_path)


@pytest.mark.parametrize("number", ["1e9999999", "1e-9999999", "-1e9999999"])
def test_a_number_beyond_every_bound_is_a_problem_of_its_key(config: dict[str, Any], number: str):
    config["chat"]["speeds"] = [{"scenario": "S", "output_tokens_per_s": Decimal(number)}]
    with pytest.raises(StackError, match=r"output_tokens_per_s: expected a number from"):
        load(config)


@pytest.mark.parametrize("number", ["9" * 5000, "1e99999999999999999999"])
def test_json_text_with_a_number_that_nothing_holds_is_a_problem_of_its_key(
    config: dict[str, Any], number: str
):
    config["chat"] = f'{{"model": "M", "context_tokens": {number}}}'
    (problem,) = problems_of(config)
    assert problem.startswith("demo.chat: expected ")


def test_the_old_name_of_a_price_book_is_read_as_its_name_now():
    assert changed(lambda config: config.update(prices="seed000")).prices == "nebius-2026-09"
