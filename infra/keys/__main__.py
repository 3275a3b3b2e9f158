"""The plugin `soperator`, started by the engine: python -m infra.keys."""

from infra.crds.provider import TYPE as CUSTOM_RESOURCES
from infra.crds.provider import CustomResourcesProvider
from infra.keys.provider import KeysProvider
from infra.plugins.dispatch import Dispatch
from infra.plugins.serve import serve
from infra.pods.provider import TYPE as PODS_STARTED
from infra.pods.provider import PodsStartedProvider
from infra.teardown.provider import TYPE, TeardownProvider
from infra.uploads.provider import TYPE as OBJECT
from infra.uploads.provider import ObjectProvider

VERSION = "0.1.0"

if __name__ == "__main__":
    by_type = {
        TYPE: TeardownProvider(),
        OBJECT: ObjectProvider(),
        CUSTOM_RESOURCES: CustomResourcesProvider(),
        PODS_STARTED: PodsStartedProvider(),
    }
    serve(Dispatch(KeysProvider(), by_type), "soperator", VERSION)
