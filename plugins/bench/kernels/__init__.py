"""Loops that measure the machine."""
