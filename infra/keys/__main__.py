"""The plugin `soperator`, started by the engine: python -m infra.keys."""

from infra.keys.provider import KeysProvider
from infra.plugins.dispatch import Dispatch
from infra.plugins.provider import serve
from infra.teardown.provider import TYPE, TeardownProvider
from infra.uploads.provider import TYPE as OBJECT
from infra.uploads.provider import ObjectProvider

VERSION = "0.1.0"

if __name__ == "__main__":
    serve(
        Dispatch(KeysProvider(), {TYPE: TeardownProvider(), OBJECT: ObjectProvider()}),
        "soperator",
        VERSION,
    )
