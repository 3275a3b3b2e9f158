"""The plugin `nebius`, started by the engine: python -m infra.nebius."""

from infra.nebius.provider import NebiusProvider
from infra.plugins.serve import serve

VERSION = "0.1.0"

if __name__ == "__main__":
    serve(NebiusProvider(), "nebius", VERSION)
