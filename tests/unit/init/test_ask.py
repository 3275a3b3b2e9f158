"""Questions come in order, each with the prices of its choices, and only where one can answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost.prices.book import PriceBook
from infra.setup.project.project import Place
from infra.setup.project.stack_file import Options, fill, stack_text, worker_choices
from stacks.errors import UserError

PLACE = Place(tenant_id="tenant-e00t", project_id="project-e00p", region="eu-north1")
NOTHING = Options(name=None, worker=None, nodes=None, fabric=None, ssh_keys=())
CHOICES = worker_choices("eu-north1", PriceBook.load("nebius"))
H100 = "gpu-h100-sxm/8gpu-128vcpu-1600gb"


class Person:
    """Answers in order and remembers the questions."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.questions: list[str] = []

    def __call__(self, question: str, default: str) -> str:
        self.questions.append(question)
        return self.answers.pop(0) or default


def test_every_answer_that_was_not_given_is_asked_for_with_its_price():
    person = Person("prod", H100, "3", "ssh-ed25519 AAAA me", "fabric-3")
    answers = fill(NOTHING, PLACE, CHOICES, person)
    assert (answers.name, answers.choice.platform, answers.nodes) == ("prod", "gpu-h100-sxm", 3)
    assert answers.fabric == "fabric-3"
    text = stack_text(answers, "v1:x")
    assert "shared_memory_gib: 400" in text
    assert "gpus_per_node: 8" in text
    name, worker, nodes, _, fabric = person.questions
    assert name == "Name of the stack"
    assert f"{H100} " in worker
    assert "a month" in nodes
    assert "fabric-2, fabric-3" in fabric


def test_what_was_given_is_not_asked_for(public_key_file: Path):
    given = Options(name="a", worker=H100, nodes=1, fabric=None, ssh_keys=(str(public_key_file),))
    person = Person()
    answers = fill(given, PLACE, CHOICES, person)
    assert person.questions == []
    assert answers.ssh_public_keys == (f"file:{public_key_file}",)
    assert answers.fabric is None


def test_a_preset_that_the_region_does_not_have_is_refused_with_those_it_has():
    given = Options(name="a", worker="gpu-b200-sxm/x", nodes=1, fabric=None, ssh_keys=("k a",))
    with pytest.raises(UserError, match=r"not offered in eu-north1; one of:\n"):
        fill(given, PLACE, CHOICES, None)


def test_every_option_that_is_wrong_is_told_at_once():
    keys = ("/none/key.pub", "ssh-ed25519 AAAA me", "file:$SOPERATOR_SSH_PUBLIC_KEY_FILE")
    given = Options(name="Own_1", worker="gpu-b200-sxm/x", nodes=1, fabric=None, ssh_keys=keys)
    with pytest.raises(UserError) as told:
        fill(given, PLACE, CHOICES, None)
    starts = [line.partition("' ")[0] for line in str(told.value).splitlines() if line[0] == "-"]
    assert starts == ["--name: 'Own_1", "--ssh-key: '/none/key.pub", "--worker: 'gpu-b200-sxm/x"]


def test_a_number_of_nodes_that_is_none_is_refused():
    with pytest.raises(UserError, match="--nodes: 'many' is not a number"):
        fill(NOTHING, PLACE, CHOICES, Person("prod", H100, "many"))


def test_a_fabric_must_be_given_where_nobody_can_be_asked():
    given = Options(name="a", worker=H100, nodes=2, fabric=None, ssh_keys=("k a",))
    with pytest.raises(UserError, match=r"--fabric: .* give one of: fabric-2, fabric-3"):
        fill(given, PLACE, CHOICES, None)


def test_a_price_follows_from_the_book():
    """16 vCPUs and 64 GiB of cpu-d3 in the book of Nebius."""
    (choice,) = [each for each in CHOICES if each.name == "cpu-d3/16vcpu-64gb"]
    assert choice.usd_per_hour is not None
    assert choice.price.startswith(f"${choice.usd_per_hour:,.2f} an hour")
    assert all(each.preset.gpus for each in CHOICES[:5])
