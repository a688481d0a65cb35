"""The settings file: `settings` decodes and checks it; `files` reads the files and secrets in it."""
