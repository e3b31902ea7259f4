"""Plugins that come with augury, beside drafters and backends."""
