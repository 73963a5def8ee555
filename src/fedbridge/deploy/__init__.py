"""A federation of real sites: its folder, certificates and keys, its checks, and its commands.

Needs the extra ``flower``; nothing outside this package and ``flower`` does.
"""
