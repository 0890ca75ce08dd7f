"""From YAML to checked configs: composing, validating, the sentences for mistakes, and plug-ins by entry point."""
