"""Diagnosis of log files: root cause, evidence and fix."""
