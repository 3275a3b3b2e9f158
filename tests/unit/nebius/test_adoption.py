"""A create takes over what an earlier run of its own made, and nothing that is another's."""

import itertools
from types import SimpleNamespace

import pytest

from infra.cli.cluster import cloud
from infra.cli.output import Format
from infra.local.nebius_api.states import set_state
from infra.providers.engine.provider import ProviderError, Secret
from infra.providers.engine.serve import _line
from infra.providers.nebius.adoption import owned, release
from infra.providers.soperator.keys import (
    StateGuardProvider,
    StateIdProvider,
)

TYPE = "nebius:compute/v1:Filesystem"
_names = (f"kept-{number}" for number in itertools.count())


@pytest.fixture
def declared(provider):
    """A checked declaration with a name of its own, changed by `spec`."""
    name = next(_names)

    def declared(**spec):
        metadata = {"parent_id": "project-e00p", "name": name}
        new = {"metadata": metadata, "spec": {"type": "network-ssd", "size_gibibytes": 1, **spec}}
        inputs, problems = provider.of(TYPE).check({}, new)
        assert not problems
        return inputs

    return declared


@pytest.fixture
def urn(declared):
    return f"urn:pulumi:local::soperator-stack::{TYPE}::{declared()['metadata']['name']}"


@pytest.fixture
def made(provider, declared, urn):
    return provider.of(TYPE).create(urn, declared())


def labels_of(served, id_):
    return dict(served.emulator.store.resources[id_].metadata.labels)


def test_another_resource_of_the_stack_never_takes_a_name_over(provider, declared, urn, made):
    """While the program is reordered, the old URN is deleted after the new one was made."""
    with pytest.raises(ProviderError, match=f"{made[0]}, which is another resource of this stack"):
        provider.of(TYPE).create(f"{urn}-other", declared())


def test_a_strangers_resource_is_refused_with_its_id_and_what_to_do(
    provider, declared, urn, served
):
    """Whoever made it by hand may have data on it."""
    id_, _ = provider.of(TYPE).create(urn, declared())
    served.emulator.store.resources[id_].metadata.labels.clear()
    with pytest.raises(
        ProviderError, match=f"{id_}, which no stack .*`soperator cluster adopt --stack "
    ):
        provider.of(TYPE).create(urn, declared())


def test_the_resource_of_another_stack_is_refused_with_its_name(provider, declared, urn, made):
    other = urn.replace("urn:pulumi:local", "urn:pulumi:prod")
    with pytest.raises(ProviderError, match="belongs to stack 'local' of Pulumi project"):
        provider.of(TYPE).create(other, declared())


def test_a_lost_state_finds_its_resource_again_and_grows_it(provider, declared, urn, made, served):
    id_, state = provider.of(TYPE).create(urn, declared(size_gibibytes=3))
    assert id_ == made[0]
    assert state["spec"]["size_gibibytes"] == 3
    assert served.emulator.store.resources[id_].spec.size_gibibytes == 3


def of_state(inputs, state_id):
    """The declaration as the program of a stack has it."""
    return {**inputs, "metadata": {**inputs["metadata"], "labels": {"state-id": state_id}}}


def test_what_another_state_has_is_neither_taken_over_nor_changed_nor_deleted(
    provider, declared, urn, served
):
    id_, state = provider.of(TYPE).create(urn, of_state(declared(), "a" * 16))
    has = f"{id_}, which state {'a' * 16} of this stack has"
    second = of_state(declared(size_gibibytes=3), "b" * 16)
    with pytest.raises(ProviderError, match=has):
        provider.of(TYPE).create(urn, second)
    with pytest.raises(ProviderError, match=has):
        provider.of(TYPE).create(urn, declared())
    with pytest.raises(ProviderError, match=has):
        provider.of(TYPE).update(urn, id_, state, second)
    with pytest.raises(ProviderError, match=has):
        provider.of(TYPE).delete(id_, second)
    assert served.emulator.store.resources[id_].spec.size_gibibytes == 1
    provider.of(TYPE).delete(id_, state)


def test_a_refresh_never_brings_in_the_label_by_which_a_destroy_would_delete(
    provider, declared, urn, served
):
    """After `cluster adopt state` the old backend still has it all in its state."""
    inputs = of_state(declared(), "a" * 16)
    id_, state = provider.of(TYPE).create(urn, inputs)
    served.emulator.store.resources[id_].metadata.labels["state-id"] = "b" * 16
    for known in (state, inputs), ({}, {}):
        with pytest.raises(ProviderError, match=f"{id_}, which state {'b' * 16} of this stack has"):
            provider.of(TYPE).read(id_, *known)
    served.emulator.store.resources[id_].metadata.labels["state-id"] = "a" * 16
    provider.of(TYPE).delete(id_, state)


def test_a_state_that_ends_leaves_what_it_keeps_to_the_next(provider, declared, urn, served):
    states = StateIdProvider()
    stack = {"project_id": "project-e00p", "stack": "local", "project": "soperator-stack"}
    state_id, state = states.create("", stack)
    id_, _ = provider.of(TYPE).create(urn, of_state(declared(), state_id))
    refused = f"state {state_id} with Filesystem {id_}; use its"
    for act in (lambda: states.preview("", "", {}, stack), lambda: states.create("", stack)):
        with pytest.raises(ProviderError, match=refused):
            act()
    states.delete(state_id, state)
    assert "state-id" not in labels_of(served, id_)
    after, _ = states.create("", stack)
    assert after != state_id
    inputs = of_state(declared(), after)
    assert provider.of(TYPE).create(urn, inputs)[0] == id_
    assert labels_of(served, id_)["state-id"] == after
    assert provider.of(TYPE).diff(id_, declared(), {}, inputs).detailed, "an older stack takes it"


def test_a_label_that_others_set_is_no_word_of_a_command_nor_of_the_terminal(
    provider, declared, urn, capsys, monkeypatch
):
    """Whoever may edit the project has no right to the machine of who reads this."""
    stack = {"project_id": "project-e00p", "stack": "labelled", "project": "soperator-stack"}
    urn = urn.replace(":local:", ":labelled:")
    provider.of(TYPE).create(urn, of_state(declared(), "\x1b]0;$(id)"))
    command = "adopt state '{}]0;$(id)' --stack labelled`"
    with pytest.raises(ProviderError) as refused:
        StateIdProvider().create("", stack)
    assert command.format("\x1b") in str(refused.value)
    assert command.format("\\x1b") in _line(refused.value), "as the engine prints it"
    monkeypatch.setattr(cloud, "price_book", lambda *_: None)
    monkeypatch.setattr(cloud, "usd_per_month", lambda *_: None)
    spec = SimpleNamespace(name="labelled", nebius=SimpleNamespace(project_id="project-e00p"))
    cloud._show(spec, [], [*owned(provider._api, **stack)], Format.TABLE)
    printed = capsys.readouterr().out
    assert command.format("\\x1b") in printed
    assert printed.replace("\n", "").isprintable()


def test_what_another_state_took_over_is_refused_before_anything_ends(provider, declared, urn):
    """What runs in the kube cluster has no label: the old backend's destroy would end it first."""
    states, guards = StateIdProvider(), StateGuardProvider()
    stack = {"project_id": "project-e00p", "stack": "guarded", "project": "soperator-stack"}
    own, _ = states.create("", stack)
    guard, state = guards.create("", {**stack, "state_id": own})
    assert guards.check({}, state) == (state, [])
    urn = urn.replace(":local:", ":guarded:")
    id_ = provider.of(TYPE).create(urn, of_state(declared(), own))[0]
    assert states.diff(own, stack, stack, stack).detailed == {}
    guards.delete(guard, state)
    release(provider._api, own, **stack)
    inputs = of_state(declared(), "b" * 16)
    assert provider.of(TYPE).create(urn, inputs)[0] == id_
    refused = f"state {'b' * 16} with Filesystem {id_};.* `pulumi stack rm --force guarded`"
    with pytest.raises(ProviderError, match=refused):
        states.diff(own, stack, stack, stack)
    with pytest.raises(ProviderError, match=refused):
        guards.delete(guard, state)
    taken = {**state, "state_id": "b" * 16}
    change = guards.diff(guard, state, state, taken)
    assert (change.replaces, [*change.detailed]) == ((), ["state_id"]), "it would refuse its end"
    guards.delete(guard, guards.update("", guard, state, taken))


def test_a_state_that_was_taken_over_is_refused_before_the_next_up_of_the_other(
    provider, declared, urn, served, monkeypatch
):
    """Its destroy would end all of it in the meantime."""
    states, guards = StateIdProvider(), StateGuardProvider()
    stack = {"project_id": "project-e00p", "stack": "taken", "project": "soperator-stack"}
    spec = SimpleNamespace(name="taken", nebius=SimpleNamespace(project_id="project-e00p"))
    own, _ = states.create("", stack)
    inputs = of_state(declared(), own)
    urn = urn.replace(":local:", ":taken:")
    id_, state = provider.of(TYPE).create(urn, inputs)
    monkeypatch.setattr(cloud, "known_ids", lambda _: frozenset())
    assert f"1 resources are no longer state {own}'s: Filesystem {id_}" in cloud._release(
        provider._api, spec, own
    )
    lost = f"taken: this state lost this stack in project-e00p.* Filesystem {id_}"
    with pytest.raises(ProviderError, match=lost):
        guards.delete("guard", {**stack, "state_id": own})
    with pytest.raises(ProviderError, match=lost):
        states.diff(own, stack, stack, stack)
    for touch in (
        lambda: provider.of(TYPE).delete(id_, state),
        lambda: provider.of(TYPE).read(id_, state, inputs),
        lambda: provider.of(TYPE).update(urn, id_, state, inputs),
    ):
        with pytest.raises(ProviderError, match=f"{id_}, which was taken from this state"):
            touch()
    there = [*owned(provider._api, **stack)]
    assert cloud._find(provider._api, spec) == (there, []), "whoever took it may purge it"
    monkeypatch.setattr(cloud, "known_ids", lambda _: frozenset({own}))
    assert cloud._find(provider._api, spec) == ([], there)
    # By mistake, and back.
    (marked,) = {each.state_id for each in there}
    assert f"no longer state {marked}'s" in cloud._release(provider._api, spec, marked)
    assert states.diff(own, stack, stack, stack).detailed == {}
    second, _ = states.create("", stack)
    assert provider.of(TYPE).create(urn, of_state(declared(), second))[0] == id_
    assert labels_of(served, id_)["state-id"] == second


def test_what_is_taken_from_a_state_has_all_that_it_had(provider, served):
    """A node group has its user data, which is a secret, and an emulated cluster is enough."""
    stack = {"project_id": "project-e00p", "stack": "local", "project": "soperator-stack"}
    state_id = "c" * 16

    def made(token, parent_id, **spec):
        token = f"nebius:{token}"
        metadata = {"parent_id": parent_id, "name": next(_names), "labels": {"state-id": state_id}}
        inputs, problems = provider.of(token).check({}, {"metadata": metadata, "spec": spec})
        assert not problems
        urn = f"urn:pulumi:local::soperator-stack::{token}::{metadata['name']}"
        return provider.of(token).create(urn, inputs)[0]

    network = made("vpc/v1:Network", "project-e00p")
    subnet = made("vpc/v1:Subnet", "project-e00p", network_id=network)
    cluster = made("mk8s/v1:Cluster", "project-e00p", control_plane={"subnet_id": subnet})
    machine = {"platform": "cpu-d3", "preset": "4vcpu-16gb"}
    disk = {"type": "network-ssd", "size_gibibytes": 93}
    template = {"resources": machine, "boot_disk": disk, "cloud_init_user_data": "#cloud-config"}
    nodes = made("mk8s/v1:NodeGroup", cluster, fixed_node_count=1, template=template)
    bucket = made("storage/v1:Bucket", "project-e00p")
    leaving = made("storage/v1:Bucket", "project-e00p")
    there = served.emulator.store.resources
    set_state(provider._api.schema, there[leaving], "deleting")
    made_ids = (nodes, cluster, subnet, network, bucket)
    before = [there[id_].spec.SerializeToString() for id_ in made_ids]
    had = [each.id for each in release(provider._api, state_id, **stack)]
    assert had == list(made_ids)
    assert [there[id_].spec.SerializeToString() for id_ in made_ids] == before
    assert all("state-id" not in labels_of(served, id_) for id_ in made_ids)
    assert "state-id" in labels_of(served, leaving), "whatever leaves can be changed no more"


def test_a_key_keeps_its_secret_in_the_state_where_reads_do_not_show_it(provider, monkeypatch):
    account, _ = iam(provider, "v1", "ServiceAccount", "project-e00p")
    spec = {
        "account": {"service_account": {"id": account}},
        "expires_at": "2027-11-21T00:00:00Z",
        "secret_delivery_mode": "INLINE",
    }
    id_, state = iam(provider, "v2", "AccessKey", "project-e00p", **spec)
    secret = state["status"]["secret"]
    monkeypatch.setattr("infra.local.nebius_api.states.secret", lambda id_: "")
    token = "nebius:iam/v2:AccessKey"
    metadata = {"parent_id": "project-e00p", "name": "the-accesskey"}
    inputs = of_state({"metadata": metadata, "spec": spec}, "a" * 16)
    plain = {**state, "status": {**state["status"], "secret": secret.value}}
    urn = f"urn:pulumi:local::soperator-stack::{token}::x"
    after = provider.of(token).update(urn, id_, plain, inputs)
    _, read, _ = provider.of(token).read(id_, plain, inputs)
    for found in after, read:
        assert isinstance(found["status"]["secret"], Secret)
        assert found["status"]["secret"].value == secret.value
    provider.of(token).delete(id_, after)


def test_what_was_handed_over_takes_the_labels_of_its_resource(
    provider, declared, urn, made, served
):
    """`soperator cluster adopt` knows the stack, not the place in its program."""
    before = labels_of(served, made[0])
    del served.emulator.store.resources[made[0]].metadata.labels["resource"]
    assert provider.of(TYPE).create(urn, declared())[0] == made[0]
    assert labels_of(served, made[0]) == before


def test_another_immutable_field_is_refused_with_both_values(provider, declared, urn, made, served):
    """A kept filesystem of another type holds data that a new one would not have."""
    with pytest.raises(ProviderError, match=r"spec\.type \(NETWORK_SSD -> NETWORK_HDD\) cannot"):
        provider.of(TYPE).create(urn, declared(type="network-hdd"))
    assert made[0] in served.emulator.store.resources


def test_what_is_kept_is_never_made_smaller(provider, declared, urn):
    provider.of(TYPE).create(urn, declared(size_gibibytes=3))
    with pytest.raises(ProviderError, match=r"size_gibibytes: 2 GiB, but it has 3 GiB and cannot"):
        provider.of(TYPE).create(urn, declared(size_gibibytes=2))


def test_a_filesystem_that_would_shrink_is_refused_with_the_sizes(provider, declared):
    old, new = declared(size_gibibytes=3), declared(size_gibibytes=2)
    _, ((path, reason),) = provider.of(TYPE).check(old, new)
    assert path == "spec.size_gibibytes"
    assert reason == (
        "2 GiB, but it has 3 GiB and cannot shrink; declare 3 GiB or more, or copy the data to "
        "a new one"
    )


def test_growth_and_a_smaller_replacement_are_no_shrinking(provider, declared):
    old = declared(size_gibibytes=3)
    assert provider.of(TYPE).check(old, declared(size_gibibytes=4))[1] == []
    smaller = declared(size_gibibytes=2, type="network-hdd")
    assert provider.of(TYPE).check(old, smaller)[1] == []


def test_a_filesystem_that_is_being_deleted_is_not_taken_over(provider, declared, urn, made):
    provider.of(TYPE).delete(*made)
    assert provider.of(TYPE).create(urn, declared())[0] != made[0]


def iam(provider, version, name, parent_id, **spec):
    """Creates a resource of the account service, as two runs of one program would."""
    token = f"nebius:iam/{version}:{name}"
    new = {"metadata": {"parent_id": parent_id, "name": f"the-{name.lower()}"}, "spec": spec}
    inputs, problems = provider.of(token).check({}, new)
    assert not problems
    return provider.of(token).create(f"urn:pulumi:local::soperator-stack::{token}::x", inputs)


def test_rights_and_members_that_a_lost_state_had_are_not_given_twice(provider, served):
    """They have no names, so the API would take any number of them."""
    account, _ = iam(provider, "v1", "ServiceAccount", "project-e00p")
    group, _ = iam(provider, "v1", "Group", "project-e00p")
    rights = {"resource_id": "storagebucket-1", "role": "storage.viewer"}
    for name, spec in ("GroupMembership", {"member_id": account}), ("AccessPermit", rights):
        first, _ = iam(provider, "v1", name, group, **spec)
        served.emulator.store.resources[first].metadata.labels.clear()
        assert iam(provider, "v1", name, group, **spec)[0] == first
    other = {**rights, "role": "storage.object-editor"}
    assert iam(provider, "v1", "AccessPermit", group, **other)[0] != first


def test_a_key_whose_secret_was_lost_with_the_state_is_revoked_and_made_anew(provider, served):
    account, _ = iam(provider, "v1", "ServiceAccount", "project-e00p")
    spec = {
        "account": {"service_account": {"id": account}},
        "expires_at": "2027-11-21T00:00:00Z",
        "secret_delivery_mode": "INLINE",
    }
    first, _ = iam(provider, "v2", "AccessKey", "project-e00p", **spec)
    second, state = iam(provider, "v2", "AccessKey", "project-e00p", **spec)
    assert first not in served.emulator.store.resources
    assert second != first
    assert isinstance(state["status"]["secret"], Secret)
    assert state["status"]["aws_access_key_id"].startswith("NAKI")
