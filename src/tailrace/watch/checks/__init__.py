"""The health checks: pure functions from facts to results. `tailrace.watch.evaluation` runs them.

A check without the facts that it needs says nothing, and its last result stays.
"""
