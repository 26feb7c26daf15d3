"""Everything that speaks SQL to the source: connection, catalogs, publication, slot, preflight."""
