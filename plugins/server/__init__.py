"""`augury serve`: an HTTP server with OpenAI's interface and others, for the clients that people already have."""
