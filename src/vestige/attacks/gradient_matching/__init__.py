"""What attacks that match gradients share."""
