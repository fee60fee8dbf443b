#!/usr/bin/env python3
"""Run a management command: ``manage.py serve``, ``createkey``, ``applyconfig`` and others."""

from bridge_project.command import main

if __name__ == "__main__":
    main()
