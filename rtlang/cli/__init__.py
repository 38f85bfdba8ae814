"""The command line: ``rtlang run | chat | generate | bench``."""
