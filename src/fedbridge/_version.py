"""The version of fedbridge, where the build and every module find it without importing more."""

__version__ = "0.2.0"
