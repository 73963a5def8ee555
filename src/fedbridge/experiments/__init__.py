"""The paper's tables and figures as data: what was compared on what, and what was printed."""
