"""What goes wrong in the world outside: damaged run directories, and configs, tables and overrides at random."""
