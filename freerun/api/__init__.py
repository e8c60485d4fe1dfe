"""What `import freerun` offers to a program; docs/library.md."""
