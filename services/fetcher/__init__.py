"""Stages source files, plans units, and hosts the dispatcher."""
