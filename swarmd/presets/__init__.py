"""The sizes that people start from, one TOML file each."""
