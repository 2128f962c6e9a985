"""Studies in worlds where no attack reads anything, one module for each kind of study."""
