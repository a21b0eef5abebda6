"""Other people's trainers: from our config to their command line. Imports nothing of theirs."""
