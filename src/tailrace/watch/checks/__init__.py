"""The health checks: pure functions from facts to results. `all_checks` runs them all.

A check without the facts that it needs says nothing, and its last result stays.
"""
