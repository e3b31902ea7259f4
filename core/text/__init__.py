"""Text: tokenizers, chat templates, and text that streams."""
