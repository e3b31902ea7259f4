"""Backends: they compute plans on a device."""
