"""What noise of several strengths hides of images."""
