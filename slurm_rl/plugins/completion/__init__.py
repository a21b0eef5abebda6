"""Tab completion for bash and zsh."""
