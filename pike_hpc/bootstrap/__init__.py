"""From nothing to an installed project: find a Python, make .venv, choose torch's build."""
