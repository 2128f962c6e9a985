"""What choosing the best of several private trainings spends: one theorem per file."""
