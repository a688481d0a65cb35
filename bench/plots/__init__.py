"""The pictures in docs/plots: `make plots`, or `python -m bench.plots`."""
