"""Who guesses the next tokens."""
