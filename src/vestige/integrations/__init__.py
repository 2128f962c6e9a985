"""Integrations: what other people's training loops release, captured where it happens.

One file for each library, which is imported when it is used and not before.
"""
