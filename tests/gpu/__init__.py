"""What only a GPU can show: kernels against their references, and how fast and how large runs are.

`make gpu` runs it (docs/performance.md). The same functions run in `make test` on a CPU, with a few
tiny layers, so that they are whole on the day that a GPU is there.
"""
