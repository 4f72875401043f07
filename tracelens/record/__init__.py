"""Runs beside the job, in our own environment: launcher, session, sampler."""
