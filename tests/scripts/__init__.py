"""Training scripts and job files for `ringup lint`; `clean_*` give no finding."""
