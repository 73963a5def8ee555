"""Flower's own processes on one machine: started, spoken to, and all ended again."""
