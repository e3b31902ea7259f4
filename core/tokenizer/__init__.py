"""Text ↔ token ids: tokenizers built from the metadata of model files, and decoding while tokens stream."""

from augury.tokenizer.stream import StreamDecoder
from augury.tokenizer.tokenizer import Tokenizer, load_tokenizer

__all__ = ["StreamDecoder", "Tokenizer", "load_tokenizer"]
