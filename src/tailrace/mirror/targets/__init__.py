"""Databases that hold a mirror: one contract, one file per target."""
