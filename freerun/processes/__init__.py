"""Child processes that die with their parent, and typed frames between them."""
