"""An app without torch: every node says who it is."""
