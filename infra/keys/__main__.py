"""The plugin `soperator`, started by the engine: python -m infra.keys."""

from infra.keys.provider import KeysProvider
from infra.plugins.provider import serve

VERSION = "0.1.0"

if __name__ == "__main__":
    serve(KeysProvider(), "soperator", VERSION)
