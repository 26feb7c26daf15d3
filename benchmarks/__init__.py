"""Benchmarks: each measures Tailrace against a reference in the same run, on embedded servers.

`python -m benchmarks NAME [--case CASE] [--json FILE] [--quick]`. A machine's absolute figures mean
little; the ratios are what README shows and what is compared between releases.
"""
