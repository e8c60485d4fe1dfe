"""Configuration: one frozen dataclass per stage (`recipe`), read from TOML and overrides (`load`)."""
