"""The commands of the command line, a family per module; each adds itself with ``add``.

What a command needs is imported when it runs, not before.
"""
