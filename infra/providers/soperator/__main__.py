"""The plugin `soperator`, started by the engine: python -m infra.providers.soperator."""

from infra.providers.engine.serve import Dispatch, serve
from infra.providers.soperator.crds import TYPE as CUSTOM_RESOURCES
from infra.providers.soperator.crds import CustomResourcesProvider
from infra.providers.soperator.keys import KeysProvider
from infra.providers.soperator.pods import TYPE as PODS_STARTED
from infra.providers.soperator.pods import PodsStartedProvider
from infra.providers.soperator.state_id import GUARD, StateGuardProvider, StateIdProvider
from infra.providers.soperator.state_id import TYPE as STATE_ID
from infra.providers.soperator.teardown import TYPE, TeardownProvider
from infra.providers.soperator.uploads import TYPE as OBJECT
from infra.providers.soperator.uploads import ObjectProvider

VERSION = "0.1.0"

if __name__ == "__main__":
    by_type = {
        TYPE: TeardownProvider(),
        OBJECT: ObjectProvider(),
        CUSTOM_RESOURCES: CustomResourcesProvider(),
        PODS_STARTED: PodsStartedProvider(),
        STATE_ID: StateIdProvider(),
        GUARD: StateGuardProvider(),
    }
    serve(Dispatch(KeysProvider(), by_type), "soperator", VERSION)
