"""Key pairs are made once, are real, and keep their secret."""

import subprocess

import pytest

from infra.clients.ssh_key import make_key_pair, public_half
from infra.providers.engine.provider import UNKNOWN, Dispatch, ProviderError, Secret
from infra.providers.soperator.keys import KEY_PAIR, KeyPairProvider

URN = f"urn:pulumi:local::soperator-stack::{KEY_PAIR}::deploy"


@pytest.fixture
def provider():
    return KeyPairProvider()


@pytest.mark.feature("S003-19")
def test_ssh_keygen_derives_the_same_public_key(provider, tmp_path):
    _, state = provider.create(URN, {"comment": "deploy of local"})
    file = tmp_path / "key"
    file.write_text(state["private_key"].value)
    file.chmod(0o600)
    derived = subprocess.run(
        ["ssh-keygen", "-y", "-f", file], capture_output=True, text=True, check=True
    ).stdout
    assert state["public_key"].split()[:2] == derived.split()[:2]
    assert state["public_key"].startswith("ssh-ed25519 ")
    assert state["public_key"].endswith(" deploy of local")


def test_the_private_key_is_secret_even_before_it_exists(provider):
    state = provider.preview(URN, "", {}, {"comment": "c"})
    assert isinstance(state["private_key"], Secret)
    assert state["public_key"] is UNKNOWN


@pytest.mark.feature("S003-19")
def test_two_pairs_differ():
    """The file of a private key has random bytes beside the key: the public halves tell."""
    assert make_key_pair("c")[0] != make_key_pair("c")[0]


def test_the_public_half_is_had_from_the_private_one():
    public, private = make_key_pair("c")
    assert public_half(private.encode(), "c") == public


def test_only_a_new_comment_makes_a_new_pair(provider):
    assert provider.diff("i", {"comment": "a"}, {}, {"comment": "a"}).detailed == {}
    assert provider.diff("i", {"comment": "a"}, {}, {"comment": "b"}).replaces == ("comment",)


def test_a_comment_is_one_line(provider):
    _, problems = provider.check({}, {"comment": "a\nb"})
    assert [path for path, _ in problems] == ["comment"]
    _, problems = provider.check({}, {"comment": "a", "bits": 4096})
    assert problems == [("bits", "unknown; has comment")]


def test_another_type_is_refused(provider):
    with pytest.raises(ProviderError, match="has only soperator:ssh:KeyPair"):
        Dispatch({KEY_PAIR: provider}).of("soperator:ssh:Certificate")
