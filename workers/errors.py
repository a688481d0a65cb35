"""What the worker refuses, under one base: every message names the setting or topic, its value, and what to do."""


class QuietcountError(Exception):
    """Base of the worker's own errors; the message is meant for the operator and holds no label, count or key."""


class SettingsError(QuietcountError):
    """A setting, file or topic is not usable as given (exit 2)."""


class StateRefused(QuietcountError):
    """Stored state does not belong to this configuration or log: going on could publish twice or uncounted (exit 2)."""


class Fenced(QuietcountError):
    """A newer owner holds this partition's transactional id: nothing more may be published here."""


class HorizonExceeded(QuietcountError):
    """A tick outside the mechanism's horizon was asked for."""


class BudgetExhausted(QuietcountError):
    """A mechanism's privacy budget is used up."""
