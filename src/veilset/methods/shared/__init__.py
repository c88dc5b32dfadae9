"""What two or more methods use; each file says which."""
