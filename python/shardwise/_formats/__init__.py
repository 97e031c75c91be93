"""Readers of formats that only packages of Python read: DCP and Orbax."""
