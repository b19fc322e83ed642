"""What a run did, while it does it: for people, and for other programs."""
