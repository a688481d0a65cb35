"""The settings file: one TOML file, decoded into types, checked once.

Imports `mechanisms`, whose configurations are the [[histogram]] sections. Start with `settings`:
`load` returns `Settings` or raises `SettingsError` with setting, value and allowed range. `files`
reads what the settings name (key, domains, secrets), `durations` parses "10s".
"""
