"""What people read: the report of one release, tables and plots of a comparison, and published numbers beside them."""
