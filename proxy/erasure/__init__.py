"""Erase one person: requests, transcripts, archived months, journals, local files and the account.

Rows of requests stay under a pseudonym, so sums of tokens and money and the hash chain stay valid.
"""
