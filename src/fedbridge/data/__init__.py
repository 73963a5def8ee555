"""Tasks: built in, or made of a user's own arrays, tables and images."""

from fedbridge.data.task import FederatedTask, Site

__all__ = ["FederatedTask", "Site"]
