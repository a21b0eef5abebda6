"""Kill real runs of the guessing game of examples/ and check the state they leave."""
