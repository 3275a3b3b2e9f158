"""Secrets that the program makes: SSH key pairs, passwords, and the days on which keys end."""

from infra.keys.key_pair import KeyPair
from infra.keys.rotated import Expiry, Password

__all__ = ["Expiry", "KeyPair", "Password"]
