"""What can go wrong, by who can mend it; every message says what was found, what was expected and what to do."""


class AuguryError(Exception):
    """Any failure that augury foresees; the command line prints its message and exits with `exit_code`."""

    exit_code = 1


class OptionError(AuguryError):
    """An option, flag or request field is unknown or out of range."""

    exit_code = 2


class PluginError(AuguryError):
    """A plugin is missing, ambiguous, broken, or written for another version of the plugin API."""


class ModelFileError(AuguryError):
    """A model file cannot be read: truncated, malformed, inconsistent or incomplete."""


class UnsupportedError(AuguryError):
    """The file or request is valid, but asks for something that augury or this machine cannot do."""


class CapacityError(AuguryError):
    """A request needs more context, memory or room in the queue than there is."""
