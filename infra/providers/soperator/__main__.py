"""The plugin `soperator`, started by the engine: python -m infra.providers.soperator."""

from infra.providers.engine.provider import Dispatch
from infra.providers.engine.serve import serve
from infra.providers.soperator import crds, keys, pods, teardown, uploads

VERSION = "0.1.0"

if __name__ == "__main__":
    by_type = {
        keys.KEY_PAIR: keys.KeyPairProvider(),
        keys.PASSWORD: keys.PasswordProvider(),
        keys.EXPIRY: keys.ExpiryProvider(),
        teardown.TYPE: teardown.TeardownProvider(),
        uploads.TYPE: uploads.ObjectProvider(),
        crds.TYPE: crds.CustomResourcesProvider(),
        pods.TYPE: pods.PodsStartedProvider(),
        keys.STATE_ID: keys.StateIdProvider(),
        keys.STATE_GUARD: keys.StateGuardProvider(),
    }
    serve(Dispatch(by_type), "soperator", VERSION)
