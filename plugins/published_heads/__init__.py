"""Heads as their trainers publish them: `config.json` and safetensors, read as the GGUF files that converters make of them."""
