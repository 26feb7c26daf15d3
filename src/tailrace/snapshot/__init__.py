"""Tables as of one moment: an exported snapshot, read in parallel, in the stream's own values.

A session holds the snapshot, any number of others read from it, each its own range of pages, and
every value comes out as the text the stream would send. What the snapshot sees is known exactly, so
rows and changes can be told apart where they meet.
"""
