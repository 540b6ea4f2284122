"""Errors of tokens. No text here contains a token, or a part of one."""

from __future__ import annotations

from common.errors import BadInputError, TransientError


class BadTokenError(BadInputError):
    """Content of a token's place is no token, or may not be used."""


class TokenExpired(TransientError):
    """No valid token now. The text gives the remedy; after it the next attempt finds the new token."""


class IssuerError(BadInputError):
    """The issuer refuses, or gives an invalid answer."""


class IssuerUnavailable(TransientError):
    """The issuer can't be reached, or doesn't work, at present."""
