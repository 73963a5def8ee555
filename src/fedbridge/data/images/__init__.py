"""Folders of images: how an image becomes a row, and rows kept for the next time."""
