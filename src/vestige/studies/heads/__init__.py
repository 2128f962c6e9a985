"""What heads on frozen backbones give away, over many heads."""
