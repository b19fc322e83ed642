"""How close a strategy comes to the best fixed choice: on recorded traces, and really."""
