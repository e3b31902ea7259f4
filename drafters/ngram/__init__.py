"""The common parts of lookup drafters."""
