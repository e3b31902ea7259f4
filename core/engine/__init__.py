"""The engine: requests, sequences and the loop that runs them."""
