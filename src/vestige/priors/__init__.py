"""Learned priors: what records look like, as networks that attackers train on their own data."""
