"""The settings file: start with `settings.load`; `files` reads the files and secrets it names."""
