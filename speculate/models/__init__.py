"""One model family a file: how it is driven. What families share stands beside them."""
