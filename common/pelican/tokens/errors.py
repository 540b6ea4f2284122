"""What can be wrong with a token. No text here holds a token, or a part of one."""

from __future__ import annotations

from common.errors import BadInputError, TransientError


class BadTokenError(BadInputError):
    """A place that should hold a token holds something else, or may not be used."""


class TokenExpired(TransientError):
    """No valid token now. The text says what to do; once it is done the next try finds the new token."""


class IssuerError(BadInputError):
    """The issuer refuses, or answers what no issuer should."""


class IssuerUnavailable(TransientError):
    """The issuer can't be reached, or is out of order, for the moment."""
