"""Entries of the log → columns of changes, with numpy and pyarrow and no loop over rows."""
