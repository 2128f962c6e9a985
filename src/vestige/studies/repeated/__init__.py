"""The same audit with several seeds: how far its rates vary."""
