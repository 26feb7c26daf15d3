"""Presets: commands that write a settings file and run it (bridge, creek, shadow)."""
