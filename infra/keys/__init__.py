"""SSH key pairs that the program makes: the deploy key and the login node's host key."""

from infra.keys.key_pair import KeyPair

__all__ = ["KeyPair"]
