"""The engine: from settings to a running process, with its signals and its order of stopping.

The command line and the console start things through here and in no other way.
"""
