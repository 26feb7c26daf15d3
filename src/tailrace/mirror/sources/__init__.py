"""Sources: where the rows and changes of a mirror come from.

source    the contract of a source, and `SourceType`, which describes one
registry  the source of an address
bridge    pipelines of shape `bridge`
creek     Creek's producers
"""
