"""Builders, clocks and fakes that tests of several parts use."""
