"""Values of the charts of Soperator 4.1.7 and of its prerequisites: spec -> dict, one chart a file.

Files are in charts/, filled in by `chart_values`. Every non-obvious value is a trap of a first
deployment; the reason stands beside it. Source of names and defaults, where a file gives no other,
read 2026-11-21: nebius/soperator helm/*/values.yaml at 4.1.7, and the values of the official recipe
(nebius-solutions-library soperator/modules/slurm/templates, commit 7b687e5).
"""
