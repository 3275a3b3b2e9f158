"""The plugin `nebius`, started by the engine: python -m infra.providers.nebius."""

from infra.providers.engine.serve import serve
from infra.providers.nebius.provider import NebiusProvider

VERSION = "0.1.0"

if __name__ == "__main__":
    serve(NebiusProvider(), "nebius", VERSION)
