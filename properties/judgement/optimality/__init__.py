"""Judging optima: exact brackets of LP*, certificates, descents and their fixed points."""
