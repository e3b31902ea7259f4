"""Files: models in GGUF, and files that appear whole or not at all."""
