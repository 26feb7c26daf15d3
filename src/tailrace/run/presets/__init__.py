"""Commands that stand for a settings file: bridge, creek, shadow."""
