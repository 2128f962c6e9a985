"""What can be done with finished runs: verify, sign, list, compare, export."""
