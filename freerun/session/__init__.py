"""One start of a command: builds the stages, starts the workers, runs the controller."""
