"""What other projects' own converters make of tiny checkpoints: see README.md beside this file."""
