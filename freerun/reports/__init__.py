"""What finished runs say together: comparisons and studies, as tables, figures and files. Reads stores only."""
