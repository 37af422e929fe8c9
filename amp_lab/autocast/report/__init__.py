"""What `xray` returns: a report with tables, a picture and JSON."""
