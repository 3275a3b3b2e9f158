"""Load test of an OpenAI-compatible server: open-loop arrivals, a curve, the SLO-feasible point."""
