"""The endpoints of llama.cpp's server, with its names, defaults and errors."""
