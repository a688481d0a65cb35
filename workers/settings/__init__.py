"""The settings file: one TOML file, decoded into types, checked once.

Imports `mechanisms`, which defines the [[histogram]] sections. Start with `settings`: `load`
returns `Settings` or raises `SettingsError` with setting, value and allowed range. `files` reads
the files and secrets named in the settings (key, domains, secrets), `durations` parses "10s".
"""
